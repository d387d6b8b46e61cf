//! `CARACAL_ADMIN_GROUP`: who may use the admin socket beside root.

/// A group whose members may use the socket: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminGroup(u32);

impl AdminGroup {
    /// Its number (GID).
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// A number, or a name in this file system's `/etc/group` (group(5)).
    ///
    /// # Errors
    /// No group has the name.
    pub(crate) fn named(text: &str) -> Result<Self, String> {
        Self::find(text, || std::fs::read_to_string("/etc/group"))
    }

    fn find(text: &str, groups: impl FnOnce() -> std::io::Result<String>) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self(number));
        }
        let groups = groups().map_err(|error| format!("/etc/group: {error}"))?;
        let number = |line: &str| {
            let mut fields = line.split(':');
            (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
        };
        let found = groups.lines().find_map(number);
        found.map(Self).ok_or_else(|| {
            format!("there is no group {text:?} in /etc/group; make it, or give a number")
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_group_is_a_number_or_has_a_name() {
        let groups = || Ok("root:x:0:\nbad\nnetops:x:1004:ann,ben\nnet:x:7:\n".to_owned());
        let find = |text| AdminGroup::find(text, groups);
        assert_eq!(find("1234"), Ok(AdminGroup(1234)));
        assert_eq!(find("net"), Ok(AdminGroup(7)));
        assert_eq!(find("netops"), Ok(AdminGroup(1004)));
        let absent = find("bad").unwrap_err();
        assert!(absent.starts_with("there is no group \"bad\""), "{absent}");
    }
}
