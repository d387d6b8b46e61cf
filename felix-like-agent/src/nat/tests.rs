//! Content of the rules, and that nothing but rules can get into them.

#![allow(clippy::unwrap_used)]

use caracal_model::FELIX_FIELDS;
use proptest::prelude::*;
use regex_lite::Regex;
use serde_json::{Value, json};

use super::*;
use crate::links::Link;
use crate::plan::tests::World;
use crate::settings::{Overrides, Settings};

#[test]
fn fingerprints_tell_rules_apart() {
    let mut other = example();
    other.ipv4.masquerade.clear();
    assert_eq!(example().fingerprint(), example().fingerprint());
    assert_ne!(example().fingerprint(), other.fingerprint());
    // Of rules that are opened, and of a changed copy, it is another one, whoever asked before.
    let (mut opened, before) = (example(), example().fingerprint());
    assert_eq!(opened.fingerprint(), before);
    opened.open_tunnels();
    assert_ne!(opened.fingerprint(), before);
    let mut copy = opened.clone();
    copy.ipv4.senders = example().ipv4.senders;
    assert_eq!(copy.fingerprint(), before);
    assert_eq!(example().fingerprint().len(), 32);
}

/// Fault of a script for nft: it may replace our table and hold nothing else.
fn strange_in_nft(script: &str) -> Option<String> {
    let words =
        "type|elements|iifname|oifname|meta|ip|ip6|udp|tcp|fib|ct|counter|masquerade|snat|jump";
    let rule = Regex::new(&format!(
        r#"^\t\t({words})( [A-Za-z0-9.:/,_@=!\[\]"*{{}}-]+)*$"#
    ));
    let hook = r"^\t\ttype (filter|nat) hook [a-z]+ priority -?[0-9]+; policy accept;$";
    let (rule, hook) = (rule.unwrap(), Regex::new(hook).unwrap());
    let begins = Regex::new("^\t(chain|set) [a-z0-9_]+ \\{$").unwrap();
    let name = Regex::new(r#""[A-Za-z0-9._-]+\*?""#).unwrap();
    let head = "table inet caracal\ndelete table inet caracal\ntable inet caracal {\n";
    let body = script
        .strip_prefix(head)
        .and_then(|rest| rest.strip_suffix("}\n"));
    let Some(body) = body else {
        return Some("it begins or ends otherwise".to_owned());
    };
    let mut inside = false;
    for line in body.split_terminator('\n') {
        let count = |sign: char| line.chars().filter(|c| *c == sign).count();
        let fine = match (inside, line) {
            (true, "\t}") => count('}') == 1,
            (false, line) => begins.is_match(line),
            (true, line) => {
                let bare = name.replace_all(line, "");
                let closed = count('{') == count('}') && !bare.contains('"');
                hook.is_match(line) || (rule.is_match(line) && closed)
            }
        };
        if !fine {
            return Some(format!("{line:?}"));
        }
        inside = line != "\t}";
    }
    inside.then(|| "a chain does not end".to_owned())
}

/// Fault of a script for iptables-restore: our chains, one jump to each, and rules in them, of
/// pairs of an option and one value, no option twice.
fn strange_in_iptables(script: &str) -> Option<String> {
    let line_of = Regex::new(
        "^(\\*(nat|filter|raw)|COMMIT|:caracal-[a-z]+ - \\[0:0\\]|-I [A-Z]+ 1 -j caracal-[a-z]+)$",
    );
    let line_of = line_of.unwrap();
    let value = Regex::new(r"^[A-Za-z0-9.:/+\[\]_][A-Za-z0-9.:/+\[\]_-]*$").unwrap();
    let options = [
        "-A",
        "-s",
        "-d",
        "-i",
        "-o",
        "-p",
        "-m",
        "-j",
        "--dport",
        "--src-type",
        "--dst-type",
        "--to-ports",
        "--to-source",
        "--ctstate",
        "--ctdir",
        "--ctorigdstport",
        "--reject-with",
    ];
    for line in script.split_terminator('\n') {
        if line_of.is_match(line) {
            continue;
        }
        let tokens: Vec<&str> = line
            .split(' ')
            .filter(|token| !["!", "--socket-exists"].contains(token))
            .collect();
        let mut seen = BTreeSet::new();
        let fine = line.starts_with("-A caracal-")
            && tokens.chunks(2).all(|pair| match pair {
                [option, text] => {
                    options.contains(option) && seen.insert(*option) && value.is_match(text)
                }
                _ => false,
            });
        if !fine {
            return Some(format!("{line:?}"));
        }
    }
    None
}

fn strange(nat: &Nat) -> Option<String> {
    let tables = |rules| strange_in_iptables(&iptables::restore(nat, rules, ""));
    strange_in_nft(&nft::script(nat))
        .or_else(|| tables(&nat.ipv4))
        .or_else(|| tables(&nat.ipv6))
        .or_else(|| strange_in_iptables(&iptables::restore_forward(nat, "")))
}

/// The judges above let our rules pass, and see what a text that is not checked would do.
#[test]
fn what_does_not_belong_into_rules_is_seen() {
    assert_eq!(strange(&example()), None);
    let script = nft::script(&example());
    for hostile in [
        "cali*\" accept\n\t}\n}\ntable inet evil {\n\tchain x {\n\t\tiifname \"a",
        "cali*\" accept }; table inet evil { chain x { iifname \"a",
        "cali\\",
        "cali#",
        "$x",
        "cali\" counter drop; add table ip evil; \"",
    ] {
        let script = script.replacen("cali", hostile, 1);
        assert!(strange_in_nft(&script).is_some(), "{script}");
    }
    let nat = example();
    let script = iptables::restore(&nat, &nat.ipv4, "");
    for hostile in [
        "cali+ -j ACCEPT -o x",
        "cali+\nCOMMIT\n*mangle\n-F\n",
        "-m",
        "\"x",
    ] {
        let script = script.replacen("-i cali+", &format!("-i {hostile}"), 1);
        assert!(strange_in_iptables(&script).is_some(), "{script}");
    }
    for added in [
        "table inet evil {\n}\n",
        "flush ruleset\n",
        "include \"/etc/x\"\n",
    ] {
        assert!(strange_in_nft(&format!("{}{added}", nft::script(&nat))).is_some());
    }
}

/// Text that somebody may put into the datastore: pieces that mean something to nft, iptables and
/// shells among it.
fn hostile() -> impl Strategy<Value = String> {
    const PIECES: [&str; 26] = [
        "cali",
        "eth+",
        "10.0.0.9",
        "10.244.0.0/16",
        "40000:40999",
        "fd00::/48",
        "Always",
        "true",
        "\"",
        "*\" accept\n\t}\n}\ntable inet evil {\n\tchain x {\n",
        "}",
        "{",
        ";",
        "\n",
        " ",
        "#",
        "\\",
        "$(reboot)",
        "@",
        "*",
        "+",
        "-j ACCEPT",
        "\nCOMMIT\n*filter\n-F\n",
        "!",
        ",",
        "include \"/etc/passwd\"",
    ];
    let piece = prop_oneof![
        4 => proptest::sample::select(&PIECES[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    proptest::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
}

fn hostile_value() -> impl Strategy<Value = Value> {
    let texts = proptest::collection::vec(hostile(), 0..3);
    prop_oneof![
        4 => hostile().prop_map(Value::from),
        1 => texts.prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
    ]
}

const POOL_FIELDS: [&str; 13] = [
    "cidr",
    "ipipMode",
    "vxlanMode",
    "natOutgoing",
    "disabled",
    "disableBGPExport",
    "blockSize",
    "nodeSelector",
    "allowedUses",
    "assignmentMode",
    "namespaceSelector",
    "nat-outgoing",
    "ipip",
];

/// A resource with some of these fields, each with any value.
fn spec(fields: Vec<&'static str>, fixed: Value) -> impl Strategy<Value = Value> {
    let some = proptest::sample::subsequence(fields.clone(), 0..=fields.len());
    let values = proptest::collection::vec(hostile_value(), fields.len());
    (some, values).prop_map(move |(fields, values)| {
        let mut spec = fixed.clone();
        for (field, value) in fields.into_iter().zip(values) {
            spec[field] = value;
        }
        spec
    })
}

proptest! {
    /// Whatever stands in FelixConfiguration, IPPools, names of interfaces: nothing leaves our
    /// table.
    #[test]
    fn no_text_of_the_datastore_leaves_our_table(
        felix in spec(FELIX_FIELDS.iter().map(|(path, _)| &path["spec.".len()..]).collect(), json!({})),
        pool in spec(POOL_FIELDS.into(), json!({"cidr": "10.245.0.0/16", "natOutgoing": true})),
        one in spec(vec!["interfacePrefix"], json!({"natOutgoingAddress": "10.0.0.1"})),
        name in hostile(),
        address in hostile(),
    ) {
        let mut world = World::new(r#","natOutgoing":true,"vxlanMode":"Always""#);
        let mut put = |kind: &str, name: &str, spec: Value| {
            let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
            let name = name.rsplit('/').next().unwrap();
            let metadata = json!({"name": name, "namespace": "default", "labels": {"bgp": "yes"}});
            let value = json!({"metadata": metadata, "spec": spec}).to_string();
            world.snapshot.apply(&path, Some(value.as_bytes()), 1000);
        };
        put("ippools", "hostile", pool);
        put("felixconfigurations", "default", felix);
        put("felixconfigurations", "node.a", one);
        put("bgppeers", "pods", json!({"localWorkloadSelector": "has(bgp)", "asNumber": 65001}));
        put("bgppeers", "router", json!({"peerIP": &address, "asNumber": 65001}));
        put("nodes", "d", json!({"addresses": [{"address": &address, "type": "InternalIP"}]}));
        let interface = format!("cali{name}");
        let workload = json!({"node": "a", "interfaceName": &interface, "ipNetworks": ["10.244.0.9/32"]});
        put("workloadendpoints", "default/w", workload);
        world.links.insert(Link::new(9, &interface));
        let (settings, _) = Settings::resolve(
            &Settings::default(), &world.snapshot, &"a".into(), &Overrides::new(),
        );
        world.settings = settings;
        // A resource that cannot be read keeps the rules before it; here there were none.
        world.snapshot.invalid.clear();
        let nat = world.plan().nat;
        prop_assert!(nat.is_some());
        prop_assert_eq!(nat.and_then(|nat| strange(&nat)), None);
    }
}
