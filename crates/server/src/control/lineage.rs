//! From which documents a control document was made: how nodes know which of two is newer when a store loses a write.
//!
//! A version alone does not say that. A failover can lose version 6, and another node then makes a different version 6. So each
//! document has an id, its version and a hash, and carries the ids of the documents before it: its lineage.
//!
//! ```text
//!   5:c1 ──► 6:9f ──► 7:04        the store has 5:c1, this node 7:04    5:c1 is before 7:04, so the store gets 7:04 (write back)
//!     ╰────► 6:e2                 the store has 6:e2, this node 7:04    5:c1 is before both, 6:9f is not 6:e2: a fork
//! ```
//!
//! A lineage names the last [`RECENT`] documents, and those before them whose version is a power of two: so it stays short, and
//! two lineages that begin with the same document always have one in common. Two documents are compared at the newest version
//! that both know. If their ids differ there, the documents are a fork. If not, the one with the higher version is the newer
//! one. That is exact unless the two were made more than [`RECENT`] changes apart; then a fork can be taken for a descendant.
//!
//! Programs that did not know lineages left none. A document without one is known from its own version on, and one that cannot
//! be compared is followed, whatever its version.

use super::Document;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use std::fmt;

/// How many documents before it a lineage names without a gap.
const RECENT: u64 = 64;
/// The most ids of a lineage that is read: itself, the recent ones, and one for each power of two.
const MOST_IDS: usize = 1 + 64 + 64;
/// The bytes of a hash. Nothing depends on an attacker not finding a collision: a user who can write a document can write any.
const HASH_BYTES: usize = 8;

/// Which document it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentId {
    pub(crate) version: u64,
    /// In hexadecimal digits.
    hash: String,
}

/// The ids of a document and of those before it, the newest first. Empty for the document that no operator has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lineage(Vec<DocumentId>);

/// What a node does about the document that the store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentStanding {
    /// Nothing: it is the document of this node.
    Same,
    /// Put it in force: it is newer.
    Follow,
    /// Replace it by the document of this node, which is newer.
    WriteBack,
    /// Both were changed since the last document that they have in common.
    Fork,
}

impl Lineage {
    /// The lineage of a document whose writer left none.
    pub(crate) fn unknown(document: &Document) -> Self {
        if *document == Document::default() { Self::default() } else { Self(vec![id_of(document)]) }
    }

    /// The lineage of a document that was made from the one with this lineage.
    pub(crate) fn then(&self, next: &Document) -> Self {
        let is_kept = |id: &&DocumentId| {
            next.version.saturating_sub(id.version) <= RECENT || id.version.is_power_of_two()
        };
        let before = self.0.iter().filter(is_kept).cloned();
        Self(std::iter::once(id_of(next)).chain(before).collect())
    }

    /// Reads what [`Display`](fmt::Display) writes, as the lineage of a document of this version; `None` if it is that of another
    /// document. If the document was restored from an older copy, its lineage is the end of a longer one.
    pub(crate) fn read(text: &str, version: u64) -> Option<Self> {
        let ids = text.split_ascii_whitespace().take(MOST_IDS).map(DocumentId::read);
        let mut ids = ids.collect::<Option<Vec<DocumentId>>>()?;
        if !ids.is_sorted_by(|newer, older| newer.version > older.version) {
            return None;
        }
        ids.retain(|id| id.version <= version);
        (ids.first()?.version == version).then_some(Self(ids))
    }

    /// The id of the document; `None` for the one that no operator has changed.
    pub(crate) fn id(&self) -> Option<&DocumentId> {
        self.0.first()
    }

    pub(crate) fn version(&self) -> u64 {
        self.id().map_or(0, |id| id.version)
    }

    /// What to do about `theirs`, the document of the store, on a node whose document has this lineage.
    pub(crate) fn standing(&self, theirs: &Self) -> DocumentStanding {
        let newer = match self.version().cmp(&theirs.version()) {
            std::cmp::Ordering::Less => DocumentStanding::Follow,
            std::cmp::Ordering::Equal => DocumentStanding::Same,
            std::cmp::Ordering::Greater => DocumentStanding::WriteBack,
        };
        if self.0.is_empty() || theirs.0.is_empty() {
            return newer; // every document was made from the first one
        }
        let known = |mine: &DocumentId| {
            theirs.0.iter().find(|id| id.version == mine.version).map(|theirs| theirs == mine)
        };
        match self.0.iter().find_map(known) {
            Some(true) => newer,
            Some(false) => DocumentStanding::Fork,
            None => DocumentStanding::Follow,
        }
    }
}

impl DocumentId {
    fn read(text: &str) -> Option<Self> {
        let (version, hash) = text.split_once(':')?;
        let is_hash =
            hash.len() == 2 * HASH_BYTES && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self { version: version.parse().ok()?, hash: hash.to_owned() }).filter(|_| is_hash)
    }
}

impl fmt::Display for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.hash)
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.iter().map(DocumentId::to_string).collect();
        f.write_str(&ids.join(" "))
    }
}

/// The id of a document that is written for the first time. Later it is read from its lineage: another version of this program may
/// write the same document in another way.
fn id_of(document: &Document) -> DocumentId {
    // A document that cannot be written is not shared either.
    let text = serde_json::to_vec(document).unwrap_or_default();
    let hash = Sha256::digest(text);
    let hash = HEXLOWER.encode(hash.get(..HASH_BYTES).unwrap_or_default());
    DocumentId { version: document.version, hash }
}

#[cfg(test)]
mod tests {
    use super::super::{Change, ChangeNote, Edition, Tier};
    use super::*;
    use proptest::prelude::*;

    /// A document, and the indices of those that it was made from, the oldest first. It is known by its index among all documents.
    #[derive(Clone)]
    struct Made {
        document: Document,
        lineage: Lineage,
        before: Vec<usize>,
    }

    /// A change that no other index makes. Documents have one entry, so that long histories are quick to write.
    fn change(index: usize) -> Change {
        Change::Tier(Tier {
            attribute: "user".to_owned(),
            value: "alice".to_owned(),
            tier: Some(index.to_string()),
            note: ChangeNote::default(),
        })
    }

    /// A tree of documents: each is made from the one that `parent` chooses among those before it.
    fn tree(parents: impl IntoIterator<Item = usize>) -> Vec<Made> {
        let root = Document::default();
        let mut made =
            vec![Made { lineage: Lineage::unknown(&root), document: root, before: vec![] }];
        for (index, parent) in parents.into_iter().enumerate() {
            let from = &made[parent % made.len()];
            let document = from.document.with(&change(index)).unwrap();
            let lineage = from.lineage.then(&document);
            let before = [&from.before[..], &[parent % made.len()]].concat();
            made.push(Made { document, lineage, before });
        }
        made
    }

    /// What the model says, which knows all documents before each.
    fn expected(made: &[Made], mine: usize, theirs: usize) -> DocumentStanding {
        match (
            mine == theirs,
            made[mine].before.contains(&theirs),
            made[theirs].before.contains(&mine),
        ) {
            (true, _, _) => DocumentStanding::Same,
            (_, true, _) => DocumentStanding::WriteBack,
            (_, _, true) => DocumentStanding::Follow,
            _ => DocumentStanding::Fork,
        }
    }

    proptest! {
        /// Any two documents of a tree of changes stand to each other as the model says, also after their lineages were written and
        /// read.
        #[test]
        fn documents_stand_as_their_histories_say(parents in prop::collection::vec(any::<usize>(), 1..60)) {
            let made = tree(parents);
            let read = |made: &Made| {
                Lineage::read(&made.lineage.to_string(), made.document.version).unwrap_or_default()
            };
            for mine in 0..made.len() {
                prop_assert_eq!(&read(&made[mine]), &made[mine].lineage);
                for theirs in 0..made.len() {
                    let standing = made[mine].lineage.standing(&read(&made[theirs]));
                    prop_assert_eq!(standing, expected(&made, mine, theirs), "{} {}", mine, theirs);
                }
            }
        }

        /// However long a history is, its lineage is short, every document before it is recognised, and one that shares nothing with
        /// it is a fork.
        #[test]
        fn long_histories_have_short_lineages(mine in 1..700_usize, theirs in 1..700_usize) {
            let line = tree(0..700);
            prop_assert!(line[700].lineage.0.len() <= MOST_IDS);
            let expected = expected(&line, mine, theirs);
            prop_assert_eq!(line[mine].lineage.standing(&line[theirs].lineage), expected);
            let stranger = Document::default().with(&change(9_999)).unwrap();
            let mut other = Lineage::default().then(&stranger);
            let mut document = stranger;
            for index in 1..theirs {
                document = document.with(&change(10_000 + index)).unwrap();
                other = other.then(&document);
            }
            prop_assert_eq!(line[mine].lineage.standing(&other), DocumentStanding::Fork);
        }
    }

    /// What happens to three nodes and their store. Indices are taken modulo their number.
    #[derive(Clone, Debug)]
    enum Step {
        /// An operator makes a change on a node; it is accepted if the store has the document of this node.
        Change(usize),
        /// A node looks at the store.
        Poll(usize),
        /// The store has the document again that it had after one of the steps before.
        Lose(usize),
        Empty,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<usize>().prop_map(Step::Change),
            3 => any::<usize>().prop_map(Step::Poll),
            1 => any::<usize>().prop_map(Step::Lose),
            1 => Just(Step::Empty),
        ]
    }

    /// A node looks at the store; returns its document if that is a fork.
    fn poll(node: &mut Edition, store: &mut Edition) -> Option<Edition> {
        match node.lineage.standing(&store.lineage) {
            DocumentStanding::Same => None,
            DocumentStanding::Follow => {
                node.clone_from(store);
                None
            }
            DocumentStanding::WriteBack => {
                store.clone_from(node);
                None
            }
            DocumentStanding::Fork => Some(std::mem::replace(node, store.clone())),
        }
    }

    proptest! {
        /// Whatever a store loses, and however nodes are cut off meanwhile: when all nodes have looked twice, they have the same
        /// document, and every change that was acknowledged is in it or was kept as a fork. Without losses nothing is a fork.
        #[test]
        fn every_acknowledged_change_survives_or_is_reported(steps in prop::collection::vec(step(), 0..60)) {
            let mut nodes = vec![Edition::default(); 3];
            let (mut store, mut past) = (Edition::default(), vec![]);
            let (mut acknowledged, mut forks) = (Vec::new(), Vec::new());
            let loses = steps.iter().any(|step| matches!(step, Step::Lose(_) | Step::Empty));
            for (number, step) in steps.iter().enumerate() {
                past.push(store.clone());
                match step {
                    Step::Change(node) => {
                        let node = &mut nodes[node % 3];
                        if node.lineage.id() == store.lineage.id() {
                            let document = node.document.with(&change(number)).unwrap();
                            let lineage = node.lineage.then(&document);
                            acknowledged.extend(lineage.id().cloned());
                            *node = Edition { document, lineage };
                            store = node.clone();
                        }
                    }
                    Step::Poll(node) => forks.extend(poll(&mut nodes[node % 3], &mut store)),
                    Step::Lose(to) => store = past[to % past.len()].clone(),
                    Step::Empty => store = Edition::default(),
                }
            }
            for _ in 0..2 {
                for node in &mut nodes {
                    forks.extend(poll(node, &mut store));
                }
            }
            prop_assert!(nodes.iter().all(|node| *node == store));
            prop_assert!(loses || forks.is_empty());
            let known = |id: &DocumentId| {
                let mut kept = forks.iter().chain([&store]);
                kept.any(|edition| edition.lineage.0.contains(id))
            };
            for id in &acknowledged {
                prop_assert!(known(id), "{id} is lost");
            }
        }
    }

    /// Programs that did not know lineages replaced documents without writing one.
    #[test]
    fn a_document_without_a_lineage_is_followed_unless_it_is_known() {
        let line = tree(0..9);
        let bare = |index: usize| Lineage::unknown(&line[index].document);
        let stranger = Document { version: 7, ..Document::default() };
        let cases = [
            (&line[5].lineage, bare(5), DocumentStanding::Same),
            (&line[5].lineage, bare(3), DocumentStanding::WriteBack),
            (&line[5].lineage, bare(7), DocumentStanding::Follow),
            (&bare(7), line[5].lineage.clone(), DocumentStanding::Follow),
            (&bare(7), bare(5), DocumentStanding::Follow),
            (&line[5].lineage, Lineage::unknown(&stranger), DocumentStanding::Follow),
            (&line[7].lineage, Lineage::unknown(&stranger), DocumentStanding::Fork),
            (&line[9].lineage, Lineage::unknown(&stranger), DocumentStanding::Fork),
        ];
        for (mine, theirs, expected) in cases {
            assert_eq!(mine.standing(&theirs), expected, "{mine} {theirs}");
        }
    }

    #[test]
    fn a_lineage_of_another_document_is_not_read() {
        let line = tree(0..5);
        let text = line[5].lineage.to_string();
        assert_eq!(Lineage::read(&text, 5), Some(line[5].lineage.clone()));
        // The file of the lineage is written first, so it may be one document ahead.
        assert_eq!(Lineage::read(&text, 4), Some(line[4].lineage.clone()));
        assert_eq!(Lineage::read(&text, 6), None);
        for wrong in ["", "5", "5:xyz", "4:0123456789abcdef 5:0123456789abcdef"] {
            assert_eq!(Lineage::read(wrong, 5), None, "{wrong}");
        }
    }
}
