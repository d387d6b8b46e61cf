//! Lists and watches.

use serde_json::{Value, json};

use super::{Server, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn revision(list: &Value) -> String {
    list["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision")
        .to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items").iter();
    items
        .map(|i| i["metadata"]["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn pages_are_of_one_revision() {
    let Some(mut server) = Server::start("pages", &[]) else {
        return;
    };
    for name in ["a", "b", "c"] {
        server.request("POST", MAPS, &map(name)).expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=2")).expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    // Changes made meanwhile are not in the rest of the list.
    server.request("POST", MAPS, &map("d")).expect(201);
    server
        .request("DELETE", &format!("{MAPS}/c"), &Value::Null)
        .expect(200);
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let rest = server
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .expect(200);
    assert_eq!(names(&rest), ["c"]);
    assert_eq!(revision(&rest), revision(&first));
    assert_eq!(rest["metadata"]["continue"], Value::Null);
    let exact = format!(
        "{MAPS}?resourceVersion={}&resourceVersionMatch=Exact",
        revision(&first)
    );
    assert_eq!(names(&server.get(&exact).expect(200)), ["a", "b", "c"]);
    // Without a limit when any revision will do.
    let any = server
        .get(&format!("{MAPS}?resourceVersion=0&limit=1"))
        .expect(200);
    assert_eq!(names(&any), ["a", "b", "d"]);
    let refused = server.get(&format!("{MAPS}?resourceVersionMatch=NotOlderThan"));
    let text = refused.refused(422, "Invalid");
    assert!(
        text.contains("forbidden unless resourceVersion is provided"),
        "{text}"
    );
    let future = server.get(&format!("{MAPS}?resourceVersion=999999"));
    let text = future.refused(504, "Timeout");
    assert!(
        text.contains("Too large resource version: 999999"),
        "{text}"
    );
    server.restart();
    server
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .refused(410, "Expired");
}

#[test]
fn metadata_alone_is_smaller() {
    let Some(server) = Server::start("metadata", &[]) else {
        return;
    };
    server.request("POST", PODS, &pod("web", None)).expect(201);
    let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let ask = |path: &str, accept: &str| {
        server
            .send("GET", path, &[("Accept", accept)], "")
            .expect("an answer")
    };
    let object = ask(&format!("{PODS}/web"), one).expect(200);
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(
        (&object["spec"], &object["status"]),
        (&Value::Null, &Value::Null)
    );
    let list = ask(PODS, many).expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    let events = ask(&format!("{PODS}?watch=1&timeoutSeconds=1"), one).events();
    assert_eq!(events[0]["object"]["kind"], "PartialObjectMetadata");
    let protobuf = ask(PODS, "application/vnd.kubernetes.protobuf");
    protobuf.refused(406, "NotAcceptable");
}

#[test]
fn a_watch_tells_what_came_since() {
    let Some(mut server) = Server::start("since", &["--bookmark-seconds", "1"]) else {
        return;
    };
    let list = server.get(PODS).expect(200);
    let web = server.request("POST", PODS, &pod("web", None)).expect(201);
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"},
        "target": {"kind": "Node", "name": "n1"}});
    server
        .request("POST", &format!("{PODS}/web/binding"), &bind)
        .expect(201);
    let now = json!({"gracePeriodSeconds": 0});
    server
        .request("DELETE", &format!("{PODS}/web"), &now)
        .expect(200);
    let from = revision(&list);
    let watch = |more: &str| {
        let path = format!("{PODS}?watch=true&timeoutSeconds=2&resourceVersion={from}{more}");
        server.get(&path).events()
    };
    let kinds = |events: &[Value]| -> Vec<String> {
        events
            .iter()
            .map(|e| e["type"].as_str().expect("a type").to_owned())
            .collect()
    };
    assert_eq!(kinds(&watch("")), ["ADDED", "MODIFIED", "DELETED"]);
    // A watch that selects by node sees a pod come when it is bound.
    let of_node = watch("&fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(kinds(&of_node), ["ADDED", "DELETED"]);
    let last = &of_node[1]["object"]["metadata"];
    assert_eq!(last["uid"], web["metadata"]["uid"]);
    assert_ne!(
        last["resourceVersion"],
        of_node[0]["object"]["metadata"]["resourceVersion"]
    );
    let marked = watch("&allowWatchBookmarks=true");
    let bookmark = marked.last().expect("an event");
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Pod");
    // It counts what happened to other kinds as well.
    server.request("POST", MAPS, &map("m")).expect(201);
    let newest = server.get(PODS).expect(200);
    let path = format!(
        "{PODS}?watch=true&timeoutSeconds=2&allowWatchBookmarks=true\
                        &resourceVersion={from}&fieldSelector=metadata.name%3Dnone"
    );
    let marked = server.get(&path).events();
    assert_eq!(
        marked[0]["object"]["metadata"]["resourceVersion"],
        *revision(&newest)
    );

    server.request("POST", PODS, &pod("b", None)).expect(201);
    let initial = "?watch=true&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true\
                   &resourceVersionMatch=NotOlderThan";
    let events = server.get(&format!("{PODS}{initial}")).events();
    assert_eq!(kinds(&events[..2]), ["ADDED", "BOOKMARK"]);
    let annotations = &events[1]["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    // After a restart everything old is too old, told as an event of a good answer.
    server.restart();
    let reply = server.get(&format!("{PODS}?watch=true&resourceVersion={from}"));
    assert_eq!(reply.code, 200);
    let events = reply.events();
    assert_eq!(events[0]["type"], "ERROR");
    assert_eq!(events[0]["object"]["code"], 410);
    assert_eq!(events[0]["object"]["reason"], "Expired");
}
