//! Calico's newer API group, `projectcalico.org/v3`: served alone it is chosen, and its kinds have
//! the names and forms that differ.

use caracal_datastore::{WatchOptions, spawn_watcher};
use caracal_ipam::{Client, Configure, SettingsChange};
use caracal_lab::wait_until;
use caracal_model::BlockOwner;
use serde_json::{Value, json};

use super::store::{request, runtime, store};
use super::{PATIENCE, Server};

/// The definitions of `deploy/crds` as the newer group has them.
fn definitions() -> Vec<Value> {
    let texts = caracal_lab::DEFINITION_FILES.iter().map(|text| {
        let text = text.replace("crd.projectcalico.org", "projectcalico.org");
        let text = text.replace("- name: v1", "- name: v3");
        let text = text.replace("IPAMConfig", "IPAMConfiguration");
        text.replace("ipamconfig", "ipamconfiguration")
    });
    let mut all: Vec<Value> = texts
        .flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).expect("definitions"))
        .collect();
    let affinity = all
        .iter_mut()
        .find(|one| one["spec"]["names"]["kind"] == "BlockAffinity");
    let version = &mut affinity.expect("affinities")["spec"]["versions"][0];
    let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let deleted = &mut spec["properties"]["deleted"];
    assert_eq!(deleted["type"], "string");
    *deleted = json!({"type": "boolean"});
    all
}

/// A server that has the newer group alone, with a pool and a Node.
fn started(scenario: &str) -> Option<Server> {
    let server = Server::start(scenario, &[])?;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for definition in definitions() {
        server.request("POST", path, &definition).expect(201);
    }
    let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
        "metadata": {"name": "p", "labels": {"site": "a"}},
        "spec": {"cidr": "10.0.0.0/24", "blockSize": 28}});
    let pools = "/apis/projectcalico.org/v3/ippools";
    // A server that has just started throttles custom resources.
    wait_until(PATIENCE, "the pool is made", || {
        match server.request("POST", pools, &pool).code {
            201 => Ok(()),
            code => Err(code),
        }
    })
    .expect("in time");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
    server.request("POST", "/api/v1/nodes", &node).expect(201);
    Some(server)
}

#[test]
fn the_newer_group_is_found_and_written_in_its_form() {
    let Some(server) = started("newer") else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let mut views = spawn_watcher(store.clone(), WatchOptions::default());
        let client = Client::new(store);
        let strict = SettingsChange {
            strict_affinity: Some(true),
            ..SettingsChange::default()
        };
        client
            .drive(Configure::new(strict))
            .await
            .expect("a configuration");
        let config = server.object(&["ipamconfiguration", "default"]);
        assert_eq!(config["apiVersion"], "projectcalico.org/v3");
        assert_eq!(config["spec"]["strictAffinity"], true);
        let got = client.auto_assign(request("node-a", "h.1")).await;
        let block = got.expect("an address").v4[0].block;
        let name = format!("node-a-{}", block.to_string().replace(['.', '/'], "-"));
        let affinity = server.object(&["blockaffinity", &name]);
        assert_eq!(affinity["spec"]["deleted"], false, "{affinity}");
        // What a watcher knows of it all; metadata are the object's own.
        let known = views.wait_for(|view| {
            let pool = view.snapshot.pools.values().next();
            let site =
                pool.is_some_and(|p| p.metadata.labels.get("site").is_some_and(|s| s == "a"));
            let config = view.snapshot.ipam_config.as_ref();
            let strict = config.is_some_and(|config| config.strict_affinity);
            site && strict && view.snapshot.blocks.len() == 1 && view.snapshot.affinities.len() == 1
        });
        drop(
            tokio::time::timeout(PATIENCE, known)
                .await
                .expect("in time")
                .expect("it runs"),
        );
        // Somebody changes it with another tool.
        let patch = json!({"spec": {"strictAffinity": false}});
        let path = "/apis/projectcalico.org/v3/ipamconfigurations/default";
        server.patch(path, "merge-patch", &patch).expect(200);
        let changed = views.wait_for(|view| {
            let config = view.snapshot.ipam_config.as_ref();
            config.is_some_and(|config| !config.strict_affinity)
        });
        drop(
            tokio::time::timeout(PATIENCE, changed)
                .await
                .expect("in time")
                .expect("it runs"),
        );
        let released = client.release_by_handle(&"h.1".into(), &[]).await;
        assert_eq!(released.expect("a release").addresses.len(), 1);
        let owner = BlockOwner::Host("node-a".into());
        let back = client.release_block_affinity(&owner, block, true).await;
        back.expect("given back");
        for kind in ["ipamblocks", "blockaffinities", "ipamhandles"] {
            assert!(server.kubectl(&["get", kind]).is_empty(), "{kind}");
        }
    });
}
