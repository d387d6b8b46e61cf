//! The services of a lab's cluster, in whichever datastore it has.

use caracal_lab::{Lab, error_chain};

use crate::datastore::{is_kubernetes, kubectl};
use crate::scenario::caracals;

/// Has the cluster's services be what documents say: in etcd with `caracal services apply`, and
/// with `kubectl` where the node reads the API itself.
#[derive(Debug)]
pub struct Services<'a>(pub &'a Lab);

impl Services<'_> {
    /// Makes the namespace of the services.
    ///
    /// # Panics
    /// When `kubectl` fails.
    pub fn prepare(&self) {
        if is_kubernetes(self.0) {
            let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
            kubectl(self.0, &["apply", "-f", "-"], namespace.as_bytes());
        }
    }

    /// `caracal services apply` on a node; what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn caracal(&self, text: &str, more: &[&str]) -> String {
        let told = self.try_caracal(text, more);
        told.unwrap_or_else(|e| panic!("{e}"))
    }

    fn try_caracal(&self, text: &str, more: &[&str]) -> Result<String, String> {
        let file = self.0.folder().path().join("services.yaml");
        std::fs::write(&file, text).expect("the lab's folder is ours");
        let file = file.display().to_string();
        let node = caracals(self.0).into_iter().next().expect("a node");
        let arguments = [&["services", "apply", &file], more].concat();
        let told = self.0.caracal(&node, &arguments);
        told.map_err(|e| error_chain(&e))
    }

    /// Makes all that the documents say; a second time there is nothing to write.
    ///
    /// # Panics
    /// When it fails.
    pub fn apply(&self, text: &str) {
        if is_kubernetes(self.0) {
            kubectl(self.0, &["apply", "-f", "-"], text.as_bytes());
            return;
        }
        let output = self.caracal(text, &[]);
        assert!(!output.contains("0 written"), "{output}");
        let output = self.caracal(text, &[]);
        assert!(output.contains("0 written"), "{output}");
    }

    /// Deletes all that the documents say; nothing else is there.
    ///
    /// # Panics
    /// When it fails, or does so without `--force`.
    pub fn delete_all(&self, text: &str) {
        if is_kubernetes(self.0) {
            kubectl(self.0, &["delete", "-f", "-"], text.as_bytes());
            return;
        }
        let empty = "apiVersion: v1\nkind: List\nitems: []\n";
        let refused = self.try_caracal(empty, &["--prune"]);
        assert!(refused.is_err_and(|e| e.contains("no Service")));
        let output = self.caracal(empty, &["--prune", "--force"]);
        let all = text.lines().filter(|line| line.starts_with("kind: "));
        let deleted = format!("{} deleted", all.count());
        assert!(output.contains(&deleted), "{output}");
    }
}
