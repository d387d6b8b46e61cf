//! Objects that exist from the start: namespaces, Caracal's definitions, and objects from a file.

use caracal_model::Txn;
use serde_json::{Value, json};

use super::metadata::Birth;
use super::objects::{self, FieldValidation};
use super::status::Failure;
use super::write::encoded;
use super::{Api, ApiServerOptions};

/// Namespaces that are always there.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The files of `deploy/crds`: the definitions that Caracal ships, one or more documents in each.
pub const DEFINITION_FILES: [&str; 8] = [
    include_str!("../../../deploy/crds/bgpconfigurations.yaml"),
    include_str!("../../../deploy/crds/bgpfilters.yaml"),
    include_str!("../../../deploy/crds/bgppeers.yaml"),
    include_str!("../../../deploy/crds/clusterinformations.yaml"),
    include_str!("../../../deploy/crds/felixconfigurations.yaml"),
    include_str!("../../../deploy/crds/ipam.yaml"),
    include_str!("../../../deploy/crds/ippools.yaml"),
    include_str!("../../../deploy/crds/ipreservations.yaml"),
];

impl Api {
    /// Makes what is not there yet.
    pub(super) async fn first_objects(&self, options: &ApiServerOptions) -> Result<(), Failure> {
        for name in NAMESPACES {
            let metadata = json!({"name": name});
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            if self.make(object).await? {
                self.default_account(name).await?;
            }
        }
        if options.has_definitions {
            for text in DEFINITION_FILES
                .iter()
                .flat_map(|file| file.split("\n---\n"))
            {
                let wrong = |e| Failure::internal(format!("a definition: {e}"));
                self.make(serde_saphyr::from_str(text).map_err(wrong)?)
                    .await?;
            }
        }
        let Some(path) = &options.objects else {
            return Ok(());
        };
        let wrong =
            |e: &dyn std::fmt::Display| Failure::internal(format!("{}: {e}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let objects: Vec<Value> = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
        for object in objects {
            self.make(object)
                .await
                .map_err(|failure| wrong(&failure.message))?;
        }
        Ok(())
    }

    /// Makes one object; says whether it was not there.
    async fn make(&self, object: Value) -> Result<bool, Failure> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let registry = self.cache.registry();
        let kind = registry
            .of_kind(&version, &kind)
            .ok_or_else(|| Failure::bad(format!("no kind {kind} in {version}")))?;
        let namespace = text(&object["metadata"]["namespace"]);
        let namespace = kind.is_namespaced.then_some(&*namespace);
        let name = text(&object["metadata"]["name"]);
        let status = object.get("status").cloned();
        let birth = Birth::now(&self.now());
        let strict = FieldValidation::Strict;
        let (mut object, _) = objects::create(&kind, namespace, object, &birth, strict)?;
        if let Some(status) = status {
            object["status"] = status;
        }
        let txn = Txn::new().create(kind.key(namespace, &name), encoded(&object));
        Ok(self.commit(&txn).await?.is_some())
    }
}
