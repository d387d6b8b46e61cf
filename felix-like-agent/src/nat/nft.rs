//! The rules as an nftables script: one transaction that replaces one table of our own.

use std::fmt::Write;

use caracal_model::net::Prefix;

use super::{FamilyRules, Nat};

/// Our table, of family `inet`.
pub const TABLE: &str = "caracal";

/// The script that puts the rules in the place of those before, in one transaction.
#[must_use]
pub fn script(nat: &Nat) -> String {
    // `delete` fails on a missing table, hence the first line.
    format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n\tchain {} {{\n\t}}\n{}}}\n",
        marker(&nat.fingerprint()),
        rules(nat),
    )
}

/// The script that removes the rules.
#[must_use]
pub fn removal() -> String {
    format!("table inet {TABLE}\ndelete table inet {TABLE}\n")
}

/// The script that prints our table; fails when there is none.
#[must_use]
pub fn listing() -> String {
    format!("list table inet {TABLE}\n")
}

/// Name of the empty chain that holds the fingerprint.
fn marker(fingerprint: &str) -> String {
    format!("fingerprint_{fingerprint}")
}

/// The fingerprint in a listing of our table.
#[must_use]
pub fn fingerprint(listing: &str) -> Option<&str> {
    listing.lines().find_map(|line| {
        let name = line.trim().strip_prefix("chain fingerprint_")?;
        name.split_whitespace().next()
    })
}

/// The table's content without the marker.
pub(super) fn rules(nat: &Nat) -> String {
    let mut text = String::new();
    let mut postrouting = String::new();
    for (family, address, rules) in [
        ("ip", "ipv4_addr", &nat.ipv4),
        ("ip6", "ipv6_addr", &nat.ipv6),
    ] {
        if !rules.masquerade.is_empty() {
            set(
                &mut text,
                &format!("{family}_masquerade"),
                address,
                &rules.masquerade,
            );
            set(
                &mut text,
                &format!("{family}_exempt"),
                address,
                &rules.exempt,
            );
            put(
                &mut postrouting,
                format_args!(
                    "{family} saddr @{family}_masquerade {family} daddr != @{family}_exempt masquerade"
                ),
            );
        }
        tunnels(&mut postrouting, family, rules);
    }
    text.push_str(
        "\tchain postrouting {\n\t\ttype nat hook postrouting priority 100; policy accept;\n",
    );
    text.push_str(&postrouting);
    text.push_str(
        "\t}\n\tchain forward {\n\t\ttype filter hook forward priority 0; policy accept;\n",
    );
    for prefix in &nat.interface_prefixes {
        put(&mut text, format_args!("iifname \"{prefix}*\" accept"));
        put(&mut text, format_args!("oifname \"{prefix}*\" accept"));
    }
    text.push_str("\t}\n");
    text
}

fn tunnels(text: &mut String, family: &str, rules: &FamilyRules) {
    for (link, address) in &rules.tunnels {
        put(
            text,
            format_args!(
                "oifname \"{link}\" {family} saddr != {address} fib saddr type local masquerade"
            ),
        );
    }
}

fn set<'a>(
    text: &mut String,
    name: &str,
    kind: &str,
    elements: impl IntoIterator<Item = &'a Prefix>,
) {
    let elements: Vec<String> = elements.into_iter().map(ToString::to_string).collect();
    // auto-merge: pools may overlap.
    put_at(text, "\t", format_args!("set {name} {{"));
    put(text, format_args!("type {kind}"));
    put(text, format_args!("flags interval"));
    put(text, format_args!("auto-merge"));
    put(
        text,
        format_args!("elements = {{ {} }}", elements.join(", ")),
    );
    put_at(text, "\t", format_args!("}}"));
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    put_at(text, "\t\t", line);
}

fn put_at(text: &mut String, indent: &str, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{indent}{line}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn the_script_replaces_the_table() {
        let fingerprint = example().fingerprint();
        let expected = r#"table inet caracal
delete table inet caracal
table inet caracal {
	chain fingerprint_FP {
	}
	set ip_masquerade {
		type ipv4_addr
		flags interval
		auto-merge
		elements = { 10.244.0.0/16 }
	}
	set ip_exempt {
		type ipv4_addr
		flags interval
		auto-merge
		elements = { 10.244.0.0/16, 10.245.0.0/16 }
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		ip saddr @ip_masquerade ip daddr != @ip_exempt masquerade
		oifname "tunl0" ip saddr != 10.244.3.64 fib saddr type local masquerade
	}
	chain forward {
		type filter hook forward priority 0; policy accept;
		iifname "cali*" accept
		oifname "cali*" accept
	}
}
"#;
        let script = script(&example());
        assert_eq!(script, expected.replace("FP", &fingerprint));
        assert_eq!(super::fingerprint(&script), Some(fingerprint.as_str()));
        assert_eq!(super::fingerprint("table inet caracal {\n}\n"), None);
    }

    #[test]
    fn without_masqueraded_pools_there_are_no_sets() {
        let mut nat = example();
        nat.ipv4.masquerade.clear();
        assert!(!rules(&nat).contains("set "));
        assert!(rules(&nat).contains("oifname \"tunl0\""));
    }
}
