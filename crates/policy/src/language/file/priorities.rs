//! Reads the priority classes of a policy, and the names of classes in its rules.

use crate::document::{Document, shown};
use crate::language::grammar;
use crate::language::reader::{Fields, Reader};
use crate::model::priority::{ClassIndex, Classes, PriorityClass};
use crate::suggest::hint;

impl Reader {
    pub(super) fn priorities(&mut self, node: &Document) -> Option<Classes> {
        let list = self.list(node, "`priorities`")?;
        let classes: Vec<_> = list.iter().filter_map(|node| self.priority_class(node)).collect();
        if classes.len() < list.len() {
            return None;
        }
        self.ok(node.place, Classes::new(classes))
    }

    fn priority_class(&mut self, node: &Document) -> Option<PriorityClass> {
        let fields = self.record(node, &grammar::PRIORITY_CLASS)?;
        let name = fields.get("name").and_then(|node| self.name(node, "a priority class"));
        let weight = fields.get("weight").and_then(|n| self.whole(n, "`weight`", 1, 1_000_000));
        let share = fields.get("share").and_then(|node| self.percent(node, "`share`", 1, 100));
        let max_wait = fields.get("max_wait").map(|node| self.length(node, "`max_wait`"));
        let weight = u32::try_from(weight?).ok()?;
        let class = PriorityClass::new(name?, weight, u32::from(share?));
        let class = self.ok(node.place, class)?;
        Some(match max_wait {
            Some(max_wait) => class.with_patience(max_wait?),
            None => class,
        })
    }

    /// The class that a rule names under `key`.
    pub(super) fn class(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        classes: &Classes,
    ) -> Option<ClassIndex> {
        fields.get(key).and_then(|node| self.class_named(node, classes))
    }

    pub(super) fn class_named(&mut self, node: &Document, classes: &Classes) -> Option<ClassIndex> {
        let name = self.text(node, "a priority class")?;
        let found = classes.find(name);
        if found.is_none() {
            let names = || classes.iter().map(PriorityClass::name);
            let all: Vec<String> = names().map(|name| format!("`{name}`")).collect();
            let text = format!(
                "there is no priority class `{}`{}; the classes are {}",
                shown(name),
                hint(name, names()),
                all.join(", ")
            );
            self.note(node.place, text);
        }
        found
    }
}
