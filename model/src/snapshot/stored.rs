//! A snapshot as lines of text, to be kept over a restart: what plans need, one value a line.
//! Fields that no plan reads (status, foreign annotations, fields of other programs' metadata) are
//! left out. The datastore holds no secrets: passwords are references to files there, and what a
//! file holds never enters a snapshot.
//!
//! A line is `FORM <tab> REVISION <tab> KEY <tab> VALUE`; key and value are JSON. FORM is `v` for a
//! value as it stands in the datastore, `b` for what is known of a block that does not concern this
//! node. Pure: who reads and writes files is elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::InsertEach;
use serde::Serialize;
use serde_json::json;

use super::{Applied, Elsewhere, KnownBlock, Snapshot, Versioned};
use crate::keys::Key;
use crate::names::NodeName;
use crate::resource::{Kind, Metadata, PasswordRef, Resource};
use crate::shared_map::SharedMap;

/// Why a line is no line of a stored snapshot.
#[derive(Debug, thiserror::Error)]
pub enum StoredLineError {
    /// It has not the four parts.
    #[error("a line without form, revision, key and value")]
    Malformed,
    /// Its key or value is no JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Its value is refused.
    #[error("{key}: {reason}")]
    Refused {
        /// Path of the value.
        key: String,
        /// The parser's reason.
        reason: String,
    },
}

/// Nodes whose endpoints are stored. Routes lead to blocks, so others' endpoints are needed only
/// where they have routes of their own.
#[derive(Clone, Copy, Debug)]
pub enum StoredEndpoints<'a> {
    /// Those of one node.
    Of(&'a NodeName),
    /// Endpoints of all nodes.
    All,
}

/// `metadata` as far as plans, and a Node that is written again, need it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptMetadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: &'a Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

impl<'a> KeptMetadata<'a> {
    fn new(metadata: &'a Metadata) -> Self {
        // Others leave whole documents in annotations.
        let ours = |key: &str| {
            let domain = key.split('/').next().unwrap_or_default();
            domain == "caracal.io" || domain == "projectcalico.org"
        };
        let annotations = metadata.annotations.iter().filter(|(key, _)| ours(key));
        Self {
            name: &metadata.name,
            namespace: &metadata.namespace,
            uid: &metadata.uid,
            creation_timestamp: &metadata.creation_timestamp,
            labels: &metadata.labels,
            annotations: annotations
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .insert_each(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Kept<'a, S> {
    kind: &'a str,
    api_version: &'a str,
    metadata: KeptMetadata<'a>,
    spec: &'a S,
}

/// Writes lines and counts them.
struct Lines<'a, W> {
    out: &'a mut W,
    written: usize,
}

impl<W: io::Write> Lines<'_, W> {
    fn put(
        &mut self,
        form: char,
        key: &Key,
        revision: i64,
        value: &impl Serialize,
    ) -> io::Result<()> {
        write!(self.out, "{form}\t{revision}\t")?;
        serde_json::to_writer(&mut *self.out, &key.to_path())?;
        self.out.write_all(b"\t")?;
        serde_json::to_writer(&mut *self.out, value)?;
        self.written += 1;
        self.out.write_all(b"\n")
    }

    fn resource<S: Serialize>(
        &mut self,
        key: &Key,
        value: &Versioned<Resource<S>>,
    ) -> io::Result<()> {
        let kept = Kept {
            kind: &value.kind,
            api_version: &value.api_version,
            metadata: KeptMetadata::new(&value.metadata),
            spec: &value.spec,
        };
        self.put('v', key, value.revision, &kept)
    }

    fn named<N: AsRef<str> + Ord + Clone, S: Serialize>(
        &mut self,
        kind: Kind,
        map: &SharedMap<N, Versioned<Resource<S>>>,
    ) -> io::Result<()> {
        for (name, value) in map {
            self.resource(&Key::resource(kind, name.as_ref()), value)?;
        }
        Ok(())
    }
}

/// Unknown fields beside the reference to a secret are most likely the secret itself. No plan reads
/// fields that are unknown.
fn forget_others(password: &mut Option<PasswordRef>) {
    if let Some(password) = password {
        password.extra.clear();
    }
}

impl Snapshot {
    /// Writes all values as lines; says how many.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_lines<W: io::Write>(
        &self,
        endpoints: StoredEndpoints<'_>,
        out: &mut W,
    ) -> io::Result<usize> {
        let mut lines = Lines { out, written: 0 };
        if let Some(guid) = &self.cluster_guid {
            let key = Key::resource(Kind::ClusterInformation, "default");
            let value = json!({"metadata": {"name": "default"}, "spec": {
                "clusterGUID": **guid,
                "datastoreReady": !self.locked,
            }});
            lines.put('v', &key, guid.revision, &value)?;
        }
        lines.named(Kind::Node, &self.nodes)?;
        lines.named(Kind::IpPool, &self.pools)?;
        lines.named(Kind::IpReservation, &self.reservations)?;
        let configurations = self.bgp_configurations.iter().map(|(name, value)| {
            let mut kept = value.clone();
            let spec = &mut Arc::make_mut(&mut kept.value).spec;
            spec.extra.clear();
            forget_others(&mut spec.node_mesh_password);
            (name.clone(), kept)
        });
        lines.named(Kind::BgpConfiguration, &configurations.collect())?;
        let peers = self.bgp_peers.iter().map(|(name, value)| {
            let mut kept = value.clone();
            let spec = &mut Arc::make_mut(&mut kept.value).spec;
            spec.extra.clear();
            forget_others(&mut spec.password);
            (name.clone(), kept)
        });
        lines.named(Kind::BgpPeer, &peers.collect())?;
        lines.named(Kind::BgpFilter, &self.bgp_filters)?;
        lines.named(Kind::FelixConfiguration, &self.felix_configurations)?;
        let stored = |node: &str| match endpoints {
            StoredEndpoints::All => true,
            StoredEndpoints::Of(me) => me.as_str() == node,
        };
        for ((namespace, name), workload) in &self.workloads {
            if stored(&workload.spec.node) {
                lines.resource(&Key::workload(namespace, name), workload)?;
            }
        }
        for (place, endpoint) in &self.elsewhere {
            if stored(endpoint.node.as_str()) {
                let (namespace, name) = Elsewhere::names(place);
                let value = json!({
                    "metadata": {"name": name, "namespace": namespace},
                    "spec": {"node": endpoint.node, "ipNetworks": endpoint.networks.as_slice()},
                });
                let key = Key::workload(namespace, name);
                lines.put('v', &key, endpoint.revision, &value)?;
            }
        }
        for (cidr, block) in &self.blocks {
            let (key, revision) = (Key::Block(*cidr), block.revision);
            match block.whole() {
                Some(whole) => lines.put('v', &key, revision, whole)?,
                None => lines.put('b', &key, revision, &**block)?,
            }
        }
        for ((owner, cidr), affinity) in &self.affinities {
            let key = Key::Affinity(owner.clone(), *cidr);
            lines.put('v', &key, affinity.revision, &**affinity)?;
        }
        if let Some(config) = &self.ipam_config {
            lines.put('v', &Key::IpamConfig, config.revision, &**config)?;
        }
        for ((kind, namespace, name), document) in &self.documents {
            let key = Key::Document {
                kind: *kind,
                namespace: namespace.clone(),
                name: name.clone(),
            };
            lines.put('v', &key, document.revision, &**document)?;
        }
        Ok(lines.written)
    }

    /// Takes a line of [`Snapshot::write_lines`] over.
    ///
    /// # Errors
    /// [`StoredLineError`]; the snapshot is as before then.
    pub fn read_line(&mut self, line: &str) -> Result<(), StoredLineError> {
        let mut parts = line.splitn(4, '\t');
        let mut part = || parts.next().ok_or(StoredLineError::Malformed);
        let (form, revision, path, value) = (part()?, part()?, part()?, part()?);
        let revision = revision.parse().map_err(|_| StoredLineError::Malformed)?;
        let path: String = serde_json::from_str(path)?;
        let refused = |reason: &str| StoredLineError::Refused {
            key: path.clone(),
            reason: reason.to_owned(),
        };
        if form == "b" {
            let block: KnownBlock = serde_json::from_str(value)?;
            if Key::parse(&path) != Ok(Key::Block(block.cidr)) {
                return Err(refused("the block is another one than its key says"));
            }
            self.revision = self.revision.max(revision);
            self.blocks
                .insert(block.cidr, Versioned::new(revision, block));
            return Ok(());
        }
        match self.apply(&path, Some(value.as_bytes()), revision) {
            Applied::Changed | Applied::Quiet => Ok(()),
            Applied::Ignored => Err(refused("not a value of a snapshot")),
            Applied::Invalid(reason) => {
                self.forget_fault(&path);
                Err(refused(&reason))
            }
        }
    }

    /// The paths of all values, in no particular order, with their revisions.
    pub fn paths(&self) -> impl Iterator<Item = (String, i64)> {
        fn of<'a, N: AsRef<str> + Ord + Clone, S>(
            kind: Kind,
            map: &'a SharedMap<N, Versioned<Resource<S>>>,
        ) -> impl Iterator<Item = (Key, i64)> + 'a {
            let entry = move |(name, value): (&N, &Versioned<Resource<S>>)| {
                (Key::resource(kind, name.as_ref()), value.revision)
            };
            map.iter().map(entry)
        }
        let guid = self.cluster_guid.iter().map(|guid| {
            let key = Key::resource(Kind::ClusterInformation, "default");
            (key, guid.revision)
        });
        let workloads = self
            .workloads
            .iter()
            .map(|((namespace, name), w)| (Key::workload(namespace, name), w.revision));
        let elsewhere = self.elsewhere.iter().map(|(place, endpoint)| {
            let (namespace, name) = Elsewhere::names(place);
            (Key::workload(namespace, name), endpoint.revision)
        });
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|(cidr, block)| (Key::Block(*cidr), block.revision));
        let affinities = self.affinities.iter();
        let affinities =
            affinities.map(|((owner, cidr), a)| (Key::Affinity(owner.clone(), *cidr), a.revision));
        let config = self.ipam_config.iter();
        let config = config.map(|config| (Key::IpamConfig, config.revision));
        let documents = self
            .documents
            .iter()
            .map(|((kind, namespace, name), document)| {
                let key = Key::Document {
                    kind: *kind,
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                (key, document.revision)
            });
        guid.chain(of(Kind::Node, &self.nodes))
            .chain(of(Kind::IpPool, &self.pools))
            .chain(of(Kind::IpReservation, &self.reservations))
            .chain(of(Kind::BgpConfiguration, &self.bgp_configurations))
            .chain(of(Kind::BgpPeer, &self.bgp_peers))
            .chain(of(Kind::BgpFilter, &self.bgp_filters))
            .chain(of(Kind::FelixConfiguration, &self.felix_configurations))
            .chain(workloads)
            .chain(elsewhere)
            .chain(blocks)
            .chain(affinities)
            .chain(config)
            .chain(documents)
            .map(|(key, revision)| (key.to_path(), revision))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ipam::{AllocationAttribute, Block, BlockOwner};

    const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";

    fn block(cidr: &str, owner: &str, used: usize) -> Vec<u8> {
        let owner = BlockOwner::Host(owner.into());
        let mut block = Block::new(cidr.parse().unwrap(), Some(&owner), 1);
        let mut attribute = AllocationAttribute::default();
        attribute.secondary.insert("node".into(), "guest".into());
        block.attributes.push(attribute);
        for ordinal in 0..used {
            block.allocations[ordinal] = Some(0);
        }
        block.to_json()
    }

    fn example() -> Snapshot {
        let mut snapshot = Snapshot {
            whole_blocks_of: Some("me".into()),
            ..Snapshot::default()
        };
        let named = |name: &str, spec: &str| {
            format!(
                r#"{{"kind":"X","apiVersion":"v3","metadata":{{"name":"{name}","labels":{{"a":"b"}},"annotations":{{"caracal.io/topology":"auto"}}}},"spec":{spec}}}"#
            )
        };
        let mut revision = 10;
        let mut put = |path: String, value: Vec<u8>| {
            revision += 1;
            let applied = snapshot.apply(&path, Some(&value), revision);
            assert_eq!(applied, Applied::Changed, "{path}");
        };
        for (path, spec) in [
            ("clusterinformations/default", r#"{"clusterGUID":"0123"}"#),
            ("nodes/me", r#"{"bgp":{"ipv4Address":"10.0.0.1/24"}}"#),
            ("nodes/tab\tand\"quote", "{}"),
            ("ippools/p", r#"{"cidr":"10.244.0.0/16"}"#),
            ("ipreservations/r", r#"{"reservedCIDRs":["10.244.0.0/30"]}"#),
            ("bgpconfigurations/default", r#"{"asNumber":65000}"#),
            (
                "bgppeers/tor",
                r#"{"peerIP":"10.0.0.9","asNumber":65001,"password":{"secretKeyRef":{"name":"s","key":"k"}}}"#,
            ),
            ("bgpfilters/f", "{}"),
            ("felixconfigurations/default", r#"{"vxlanVNI":7}"#),
            (
                "workloadendpoints/ns/mine",
                r#"{"node":"me","ipNetworks":["10.244.0.5/32"]}"#,
            ),
        ] {
            let name = path.rsplit('/').next().unwrap();
            let name = serde_json::to_string(name).unwrap();
            let value = named(&name[1..name.len() - 1], spec);
            put(format!("{RESOURCES}/{path}"), value.into_bytes());
        }
        let ipam = "/calico/ipam/v2";
        let of = |name: &str| format!("{ipam}/assignment/ipv4/block/10.244.{name}");
        put(of("0.0-26"), block("10.244.0.0/26", "me", 2));
        put(of("1.0-26"), block("10.244.1.0/26", "other", 3));
        let claim = br#"{"state":"confirmed","deleted":false}"#;
        put(
            format!("{ipam}/host/me/ipv4/block/10.244.0.0-26"),
            claim.to_vec(),
        );
        put(
            format!("{ipam}/config"),
            br#"{"StrictAffinity":true}"#.to_vec(),
        );
        put(
            "/calico/caracal/v1/services/ns/web".to_owned(),
            br#"{"spec":{}}"#.to_vec(),
        );
        snapshot
    }

    fn read(text: &[u8]) -> Snapshot {
        let mut snapshot = Snapshot {
            whole_blocks_of: Some("me".into()),
            ..Snapshot::default()
        };
        for line in std::str::from_utf8(text).unwrap().lines() {
            snapshot.read_line(line).unwrap();
        }
        snapshot
    }

    #[test]
    fn what_is_written_is_read_again() {
        let snapshot = example();
        let mut text = Vec::new();
        let written = snapshot
            .write_lines(StoredEndpoints::All, &mut text)
            .unwrap();
        assert_eq!(written, 15);
        let again = read(&text);
        assert_eq!(again, snapshot);
        // The paths are those that were applied: each removes its value.
        let mut emptied = again;
        let paths: Vec<_> = emptied.paths().collect();
        assert_eq!(paths.len(), 15);
        assert_eq!(paths.iter().map(|(_, r)| *r).max(), Some(25));
        for (path, _) in paths {
            emptied.apply(&path, None, 25);
        }
        assert_eq!(emptied.paths().count(), 0);
    }

    #[test]
    fn what_no_plan_reads_is_left_out() {
        let mut snapshot = example();
        let path = format!("{RESOURCES}/nodes/talkative");
        let value = br#"{"metadata":{"name":"talkative","managedFields":["hunter2"],
            "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}},
            "spec":{},"status":{"note":"hunter2"}}"#;
        assert_eq!(snapshot.apply(&path, Some(value), 30), Applied::Changed);
        let path = format!("{RESOURCES}/workloadendpoints/ns/theirs");
        let value = br#"{"metadata":{"name":"theirs"},"spec":{"node":"other"}}"#;
        assert_eq!(snapshot.apply(&path, Some(value), 31), Applied::Quiet);
        // Passwords belong into a secret; whoever writes one beside the reference to it, or in its
        // place, is not copied.
        let path = format!("{RESOURCES}/bgppeers/plain");
        let value = br#"{"metadata":{"name":"plain","annotations":{"note":"hunter2"}},
            "spec":{"peerIP":"10.0.0.8","asNumber":65002,"authPassword":"hunter2",
            "password":{"value":"hunter2","secretKeyRef":{"name":"s","key":"k","text":"hunter2"}}}}"#;
        assert_eq!(snapshot.apply(&path, Some(value), 32), Applied::Changed);
        let path = format!("{RESOURCES}/bgppeers/instead");
        let value = br#"{"metadata":{"name":"instead"},
            "spec":{"peerIP":"10.0.0.7","asNumber":65002,"password":"hunter2"}}"#;
        snapshot.apply(&path, Some(value), 33);
        let path = format!("{RESOURCES}/bgpconfigurations/default");
        let value =
            br#"{"metadata":{"name":"default"},"spec":{"asNumber":65000,"meshPassword":"hunter2",
            "nodeMeshPassword":{"value":"hunter2","secretKeyRef":{"name":"s","key":"m"}}}}"#;
        assert_eq!(snapshot.apply(&path, Some(value), 34), Applied::Changed);
        let mut text = Vec::new();
        let me = NodeName::from("me");
        snapshot
            .write_lines(StoredEndpoints::Of(&me), &mut text)
            .unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!text.contains("theirs"), "{text}");
        assert!(text.contains("ns/mine") && text.contains("nodes/talkative"));
        assert!(text.contains("bgppeers/plain") && text.contains(r#""key":"k""#));
        assert!(text.contains(r#""key":"m""#), "{text}");
    }

    #[test]
    fn a_line_that_is_none_is_refused_with_its_key() {
        let mut snapshot = Snapshot::default();
        let pool = format!("{RESOURCES}/ippools/p");
        for (line, reason) in [
            ("v\t1".to_owned(), "without form"),
            ("v\tx\t\"k\"\t{}".to_owned(), "without form"),
            ("v\t1\tk\t{}".to_owned(), "expected value"),
            (
                format!("v\t1\t\"{pool}\"\t{{\"metadata\":{{}}}}"),
                pool.as_str(),
            ),
            (
                "v\t1\t\"/calico/ipam/v2/handle/h\"\t{}".to_owned(),
                "not a value",
            ),
        ] {
            let error = snapshot.read_line(&line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
        assert_eq!(snapshot.paths().count(), 0);
        assert!(snapshot.invalid.is_empty());
    }
}
