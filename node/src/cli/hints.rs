//! Commands of calicoctl and birdc that are called otherwise here: who types one is told how.

/// Words of theirs, and what does it here, with `; ` between; longer words before shorter ones.
pub(crate) const HINTS: &[(&str, &str)] = &[
    ("node status", "caracal status; caracal bgp peers"),
    ("node diags", "caracal bundle"),
    ("node checksystem", "caracal doctor --local"),
    ("node run", "caracal node"),
    ("cluster diags", "caracal bundle --all-nodes"),
    ("datastore migrate export", "caracal datastore export"),
    (
        "datastore migrate import",
        "caracal datastore import -f FILE",
    ),
    ("datastore migrate lock", "caracal datastore lock"),
    ("datastore migrate unlock", "caracal datastore unlock"),
    (
        "datastore migrate",
        "caracal datastore export; caracal datastore import -f FILE",
    ),
    ("validate", "caracal apply --dry-run -f FILE"),
    ("show protocols", "caracal bgp peers; caracal bgp peer PEER"),
    (
        "show route",
        "caracal bgp routes; caracal bgp received PEER",
    ),
    ("show status", "caracal status"),
    (
        "show",
        "caracal status; caracal bgp peers; caracal bgp routes",
    ),
    ("configure", "caracal speaker reload"),
    ("disable", "caracal bgp disable PEER"),
    ("enable", "caracal bgp enable PEER"),
    ("restart", "caracal bgp reset PEER"),
    ("reload", "caracal bgp reset PEER --soft in"),
    ("dump routes", "caracal bgp mrt FILE"),
];

/// What to say to somebody whose words are no command here.
pub(crate) fn of(words: &[String]) -> Option<String> {
    let typed: Vec<&str> = words.iter().map(String::as_str).collect();
    let (theirs, here) = HINTS.iter().find(|(theirs, _)| {
        let theirs: Vec<&str> = theirs.split(' ').collect();
        typed.starts_with(&theirs)
    })?;
    let here = here.replace("; ", "`, `");
    Some(format!("{theirs:?} is another command here: `{here}`"))
}
