//! Links of one namespace: finding, deleting, and what a link says of itself.

use std::io;

use caracal_model::Mac;
use futures_util::TryStreamExt;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::Handle;

use super::netns::{Netns, NetnsError};
use super::sysctl::SysctlError;

/// Why the kernel's state could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A switch could not be set.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// A request was refused.
    #[error("the kernel refused to {action}")]
    Refused {
        /// Request to the kernel.
        action: String,
        /// Error of the kernel.
        #[source]
        source: rtnetlink::Error,
    },
    /// A device that was just made is not there.
    #[error("interface {name} is gone again; did the container end, or another program delete it?")]
    Vanished {
        /// The interface.
        name: String,
    },
    /// The host side's name is in use for another container.
    #[error(
        "interface {name} on the host belongs to {owner}; two container ids lead to one name: \
         choose another CNI_CONTAINERID"
    )]
    Collision {
        /// The interface.
        name: String,
        /// Owner of the interface: a handle.
        owner: String,
    },
    /// The pod has an interface of this name, and it is not ours.
    #[error(
        "the container already has an interface {name} that another program made; \
         remove it or choose another CNI_IFNAME"
    )]
    Taken {
        /// The interface in the container.
        name: String,
    },
}

impl KernelError {
    /// Wraps a refusal.
    pub(crate) fn refused(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let action = action.into();
        |source| Self::Refused { action, source }
    }
}

/// Link as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Interface index.
    pub index: u32,
    pub name: String,
    /// MAC, for Ethernet.
    pub mac: Option<Mac>,
    /// MTU in octets.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Index of the other end of a veth, in its namespace.
    pub peer: Option<u32>,
    /// True for a veth.
    pub veth: bool,
    /// Alias, `ip link set … alias`.
    pub alias: Option<String>,
}

impl Link {
    fn from_message(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(mac) => link.mac = mac.try_into().ok(),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Link(index) => link.peer = Some(index),
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::LinkInfo(infos) => {
                    link.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
                }
                _ => {}
            }
        }
        link
    }

    /// True when the two are the ends of one veth pair, seen from their namespaces.
    #[must_use]
    pub(crate) fn is_pair_with(&self, other: &Self) -> bool {
        self.veth && other.veth && self.peer == Some(other.index) && other.peer == Some(self.index)
    }
}

/// A netlink socket in one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    pub(crate) handle: Handle,
}

impl Links {
    /// A socket in this thread's namespace. Must be called within a runtime.
    ///
    /// # Errors
    /// [`KernelError::Socket`].
    pub(crate) fn here() -> Result<Self, KernelError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(KernelError::Socket)?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// A socket in another namespace, after `prepare` ran there.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) fn inside(
        netns: &Netns,
        prepare: impl FnOnce() -> Result<(), SysctlError> + Send,
    ) -> Result<Self, KernelError> {
        let runtime = tokio::runtime::Handle::current();
        netns.run(move || {
            prepare()?;
            let _guard = runtime.enter();
            Self::here()
        })?
    }

    /// The link of this name.
    ///
    /// # Errors
    /// [`KernelError::Refused`].
    pub(crate) async fn by_name(&self, name: &str) -> Result<Option<Link>, KernelError> {
        let found = self.handle.link().get().match_name(name).execute();
        self.first(found, || format!("show link {name}")).await
    }

    /// The link of this index.
    ///
    /// # Errors
    /// [`KernelError::Refused`].
    pub(crate) async fn by_index(&self, index: u32) -> Result<Option<Link>, KernelError> {
        let found = self.handle.link().get().match_index(index).execute();
        self.first(found, || format!("show link {index}")).await
    }

    async fn first(
        &self,
        found: impl futures_util::Stream<Item = Result<LinkMessage, rtnetlink::Error>>,
        action: impl FnOnce() -> String,
    ) -> Result<Option<Link>, KernelError> {
        let mut found = std::pin::pin!(found);
        match found.try_next().await {
            Ok(message) => Ok(message.map(Link::from_message)),
            Err(error) if is_errno(&error, nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(KernelError::refused(action())(error)),
        }
    }

    /// All links.
    ///
    /// # Errors
    /// [`KernelError::Refused`].
    pub(crate) async fn all(&self) -> Result<Vec<Link>, KernelError> {
        let found = self.handle.link().get().execute();
        found
            .map_ok(Link::from_message)
            .try_collect()
            .await
            .map_err(KernelError::refused("list links"))
    }

    /// Deletes a link, and with it the other end of a veth. One that is gone is no error.
    ///
    /// # Errors
    /// [`KernelError::Refused`].
    pub(crate) async fn delete(&self, link: &Link) -> Result<(), KernelError> {
        match self.handle.link().del(link.index).execute().await {
            Err(error) if !is_errno(&error, nix::libc::ENODEV) => Err(KernelError::refused(
                format!("delete link {}", link.name),
            )(error)),
            _ => Ok(()),
        }
    }
}

/// True when the kernel answered with this error.
pub(crate) fn is_errno(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -errno)
}
