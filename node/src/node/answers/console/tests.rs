#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use caracal_datastore::TestFolder;

use super::*;

fn access(address: &str, token: Option<&PathBuf>) -> Result<Access, String> {
    let files = ConsoleFiles {
        token: token.cloned(),
        ..ConsoleFiles::default()
    };
    Terms::read(address.parse().unwrap(), &files, None).map(|terms| terms.access)
}

#[test]
fn what_others_reach_is_served_with_a_token_alone() {
    for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let access = access(loopback, None);
        assert!(matches!(access, Ok(Access::Loopback)), "{loopback}");
    }
    for open in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
        let refused = access(open, None);
        assert!(refused.is_err_and(|e| e.contains(TOKEN)), "{open}");
    }
    let folder = TestFolder::new("console");
    let file = folder.join("token");
    assert!(
        access("127.0.0.1:1", Some(&file)).is_err(),
        "there is no file"
    );
    std::fs::write(&file, "short\n").unwrap();
    assert!(access("10.0.0.1:1", Some(&file)).is_err_and(|e| e.contains("5 octets")));
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    for address in ["10.0.0.1:1", "127.0.0.1:1"] {
        let access = access(address, Some(&file));
        assert!(matches!(access, Ok(Access::Token(_))), "{address}");
    }
}
