//! "Did you mean …?": the known word that is nearest to a misspelt one, by edit distance.

/// `, did you mean `limits`?`, or an empty text when no known word is near.
pub(crate) fn hint<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> String {
    nearest(found, known).map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
}

/// The known word with the smallest edit distance; `None` when all of them differ in more than a third of their letters.
pub(crate) fn nearest<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // A word of a megabyte is not a typing error, and comparing it would take long.
    if found.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', ' '], "_");
    let distance = |name: &str| strsim::osa_distance(&plain(found), &plain(name));
    let near = known.map(|name| (distance(name), name)).min_by_key(|(distance, _)| *distance)?;
    let allowed = (found.len().max(near.1.len()) / 3).max(1);
    (near.0 <= allowed).then_some(near.1)
}
