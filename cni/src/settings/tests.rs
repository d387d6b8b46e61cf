#![allow(clippy::unwrap_used)]

use caracal_datastore::TestFolder;

use super::*;

struct Folder(TestFolder);

impl Folder {
    fn new(name: &str) -> Self {
        Self(TestFolder::new(name))
    }

    fn dirs(&self) -> Dirs {
        Dirs {
            lib: self.0.to_path_buf(),
            run: self.0.to_path_buf(),
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

#[test]
fn directories_come_from_configuration_then_environment_then_default() {
    let mut conf = NetConf::default();
    let none = |_: &str| None;
    let some = |name: &str| (name == "CARACAL_LIB_DIR").then(|| "/env".to_owned());
    assert_eq!(
        Dirs::from_conf(&conf, none).lib,
        Path::new("/var/lib/calico")
    );
    assert_eq!(
        Dirs::from_conf(&conf, none).admin_socket(),
        Path::new("/var/run/caracal/caracal.sock")
    );
    assert_eq!(Dirs::from_conf(&conf, some).lib, Path::new("/env"));
    conf.lib_dir = "/conf".to_owned();
    assert_eq!(Dirs::from_conf(&conf, some).lib, Path::new("/conf"));
}

#[test]
fn the_nodes_name_is_looked_for_in_order() {
    let folder = Folder::new("name");
    let dirs = folder.dirs();
    let mut conf = NetConf {
        hostname: "legacy".to_owned(),
        ..NetConf::default()
    };
    let name = |conf: &NetConf| node_name(conf, &dirs).map(|name| name.to_string());
    if !Path::new(CALICO_LIB_DIR).join("nodename").exists() {
        assert_eq!(name(&conf).unwrap(), "legacy");
    }
    folder.write("nodename", "from-lib\n");
    assert_eq!(name(&conf).unwrap(), "from-lib");
    conf.nodename_file = folder.0.join("other").to_string_lossy().into_owned();
    assert!(matches!(
        name(&conf),
        Err(PluginSettingsError::File {
            key: "nodename_file",
            ..
        })
    ));
    conf.nodename_file_optional = true;
    assert_eq!(name(&conf).unwrap(), "from-lib");
    folder.write("other", " from-file ");
    assert_eq!(name(&conf).unwrap(), "from-file");
    conf.nodename = "set".to_owned();
    assert_eq!(name(&conf).unwrap(), "set");
    conf.nodename = "a/b".to_owned();
    assert!(
        name(&conf)
            .unwrap_err()
            .to_string()
            .contains("\"a/b\" is no name")
    );
}

#[test]
fn the_mtu_is_looked_for_in_order() {
    let folder = Folder::new("mtu");
    let dirs = folder.dirs();
    let mut conf = NetConf::default();
    let elsewhere = Path::new(CALICO_LIB_DIR).join("mtu").exists();
    if !elsewhere {
        assert_eq!(mtu(&conf, &dirs).unwrap(), 0);
        conf.require_mtu_file = true;
        assert!(matches!(
            mtu(&conf, &dirs),
            Err(PluginSettingsError::NoMtu { .. })
        ));
    }
    folder.write("mtu", "1430\n");
    assert_eq!(mtu(&conf, &dirs).unwrap(), 1430);
    folder.write("mtu", "14x");
    assert!(
        mtu(&conf, &dirs)
            .unwrap_err()
            .to_string()
            .contains("\"14x\"")
    );
    conf.mtu = 1300;
    assert_eq!(mtu(&conf, &dirs).unwrap(), 1300);
}

#[tokio::test(start_paused = true)]
async fn the_mtu_of_a_node_that_has_just_started_is_waited_for() {
    let folder = Folder::new("mtu-soon");
    let dirs = folder.dirs();
    if Path::new(CALICO_LIB_DIR).join("mtu").exists() {
        return;
    }
    let mut conf = NetConf {
        route_wait_seconds: Some(3),
        ..NetConf::default()
    };
    let start = tokio::time::Instant::now();
    assert_eq!(mtu_soon(&conf, &dirs).await.unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_secs(3));

    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        folder.write("mtu", "1450");
    };
    let (found, ()) = tokio::join!(mtu_soon(&conf, &dirs), late);
    assert_eq!(found.unwrap(), 1450);

    std::fs::remove_file(folder.0.join("mtu")).unwrap();
    conf.route_wait_seconds = Some(0);
    let start = tokio::time::Instant::now();
    assert_eq!(mtu_soon(&conf, &dirs).await.unwrap(), 0);
    assert_eq!(start.elapsed(), Duration::ZERO);
}
