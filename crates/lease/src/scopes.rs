//! Scopes, for those who use them: our own, and the buildsets of Zuul as far as they can be seen.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{
    Label, Node, NodeId, NodeRequest, NodeState, RequestId, TenantName, Timestamp, layout,
};
use nodeyard_store::registry::Stored;
use nodeyard_store::view::Changes;
use nodeyard_store::{self as store, CreateMode, TreePath, Version, ext};
use serde_json::Value;

use crate::ask::{self, Caller};
use crate::book::{self, json, scope_path};
use crate::buildsets;
use crate::error::{Error, Result};
use crate::ids::ScopeId;
use crate::inventory::inventory;
use crate::lease::PartState;
use crate::leases::{Leases, Status};
use crate::scope::{Scope, ScopeName};

/// A scope and what it owns.
#[derive(Debug, Clone)]
pub enum ScopeStatus {
    /// One of ours.
    Own {
        id: ScopeId,
        scope: Arc<Scope>,
        leases: Vec<Status>,
    },
    /// A buildset of Zuul: it can be looked at, and nothing else.
    Buildset(Buildset),
}

/// What Zuul has asked for and got for one buildset, as far as its requests were seen while they were there.
#[derive(Debug, Clone)]
pub struct Buildset {
    /// `zuul:` and the id of the buildset.
    pub name: ScopeName,
    pub tenant: Option<TenantName>,
    pub pipeline: Option<Box<str>>,
    /// Those that are still waiting, or whose nodes were not taken yet.
    pub requests: Vec<(RequestId, Arc<NodeRequest>)>,
    pub nodes: Vec<(NodeId, Arc<Node>)>,
}

impl ScopeStatus {
    pub fn name(&self) -> &ScopeName {
        match self {
            Self::Own { scope, .. } => &scope.name,
            Self::Buildset(buildset) => &buildset.name,
        }
    }

    pub fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::Own { scope, .. } => scope.tenant.as_ref(),
            Self::Buildset(buildset) => buildset.tenant.as_ref(),
        }
    }

    /// The nodes that can be used.
    pub fn nodes(&self) -> Vec<(NodeId, Label, Arc<Node>)> {
        match self {
            Self::Own { leases, .. } => {
                let nodes = leases.iter().flat_map(|status| &status.nodes);
                nodes
                    .filter(|seen| seen.part.state == PartState::Leased)
                    .filter_map(|seen| Some((seen, seen.node.clone()?)))
                    .filter(|(_, node)| node.state == NodeState::InUse)
                    .map(|(seen, node)| (seen.part.node, seen.part.label.clone(), node))
                    .collect()
            }
            Self::Buildset(buildset) => {
                let nodes = buildset.nodes.iter();
                nodes
                    .filter_map(|(id, node)| {
                        Some((*id, node.labels.first()?.clone(), Arc::clone(node)))
                    })
                    .collect()
            }
        }
    }

    /// The nodes as an Ansible inventory, as `ansible-inventory --list` prints it.
    pub fn inventory(&self) -> Value {
        let nodes = self.nodes();
        inventory(nodes.iter().map(|(id, label, node)| (*id, label, &**node)))
    }
}

impl Leases {
    /// Opens a scope for a time, after which its leases end unless it is renewed.
    pub async fn open_scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        duration: u64,
    ) -> Result<Arc<Scope>> {
        ask::check_duration(duration)?;
        ask::check_text("name of the caller", &caller.name)?;
        buildsets::check_own(name)?;
        let tenant = caller.tenant_of(tenant)?;
        let path = scope_path(ScopeId::of_name(tenant.as_ref(), name.as_str()))?;
        let now = self.book.clock.now();
        let scope = Scope {
            name: name.clone(),
            tenant,
            owner: caller.name.clone(),
            created: now,
            expires: Some(now + Duration::from_secs(duration)),
            duration: Some(duration),
            provider: None,
            closing: false,
        };
        let data = json(&path, &scope)?;
        let tree = &**self.book.tree();
        let root = TreePath::new(layout::SCOPES).map_err(store::Error::from)?;
        ext::persist(tree, || ext::ensure_path(tree, &root)).await?;
        match tree.create(&path, data, CreateMode::Persistent).await {
            Ok(_) => Ok(Arc::new(scope)),
            Err(store::Error::NodeExists { .. }) => Err(Error::ScopeExists {
                scope: name.clone(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Prolongs a scope from now on; says until when. One that lives as long as its leases gets an end of its own.
    pub async fn renew_scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        duration: Option<u64>,
    ) -> Result<Option<Timestamp>> {
        duration.map_or(Ok(()), ask::check_duration)?;
        let now = self.book.clock.now();
        let change = |scope: &mut Scope| {
            if !scope.is_alive(now) {
                return Err(Error::ScopeCloses {
                    scope: name.clone(),
                });
            }
            scope.duration = duration.or(scope.duration);
            scope.expires = scope
                .duration
                .map(|seconds| now + Duration::from_secs(seconds));
            Ok(())
        };
        let scope = self.change_scope(caller, tenant, name, change).await?;
        Ok(scope.expires)
    }

    /// Ends a scope and everything it owns. Returns when that is written down; its leases end one by one.
    pub async fn close_scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<Arc<Scope>> {
        let close = |scope: &mut Scope| {
            scope.closing = true;
            Ok(())
        };
        let closed = self.change_scope(caller, tenant, name, close).await?;
        Ok(Arc::new(closed))
    }

    /// A scope, our own or one of Zuul's. Callers without a tenant of their own name that of the scope.
    pub async fn scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<ScopeStatus> {
        if buildsets::is_of_zuul(name) {
            let found = self.book.buildsets.list(&self.book);
            let mut found = found.into_iter().filter(|buildset| buildset.name == *name);
            let found = found.find(|buildset| caller.sees(buildset.tenant.as_ref()));
            return found.map(ScopeStatus::Buildset).ok_or(Error::NoSuchScope {
                scope: name.clone(),
            });
        }
        let (id, stored) = self.read_scope(caller, tenant, name).await?;
        // A lease that was just asked for belongs to it, too.
        self.book.leases.synced().await?;
        Ok(ScopeStatus::Own {
            id,
            scope: Arc::new(stored.value),
            leases: self.members(id),
        })
    }

    /// All scopes that the caller may see, as last heard of; ours first.
    pub fn scopes(&self, caller: &Caller) -> Vec<ScopeStatus> {
        let own = self.book.scopes.items().into_iter();
        let own = own.map(|item| ScopeStatus::Own {
            id: item.id,
            leases: self.members(item.id),
            scope: item.value,
        });
        let buildsets = self.book.buildsets.list(&self.book).into_iter();
        own.chain(buildsets.map(ScopeStatus::Buildset))
            .filter(|scope| caller.sees(scope.tenant()))
            .collect()
    }

    /// Which of our scopes change from now on.
    pub fn scope_changes(&self) -> Changes<ScopeId> {
        self.book.scopes.changes()
    }

    async fn change_scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        change: impl Fn(&mut Scope) -> Result<()>,
    ) -> Result<Scope> {
        buildsets::check_own(name)?;
        self.persist(|| async {
            loop {
                let (id, stored) = self.read_scope(caller, tenant, name).await?;
                let mut scope = stored.value;
                change(&mut scope)?;
                let path = scope_path(id)?;
                let version = Version::Exactly(stored.stat.version);
                let written = self.book.tree().set(&path, json(&path, &scope)?, version);
                match written.await {
                    Ok(stat) => {
                        self.book.scopes.wrote(id, Arc::new(scope.clone()), stat);
                        return Ok(scope);
                    }
                    Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        })
        .await
    }

    async fn read_scope(
        &self,
        caller: &Caller,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<(ScopeId, Stored<Scope>)> {
        let no_such = || Error::NoSuchScope {
            scope: name.clone(),
        };
        let tenant = caller.tenant_of(tenant).map_err(|_| no_such())?;
        let id = ScopeId::of_name(tenant.as_ref(), name.as_str());
        let path = scope_path(id)?;
        let stored = self
            .persist(|| async { Ok(book::read(&**self.book.tree(), &path).await?) })
            .await?;
        stored.map(|stored| (id, stored)).ok_or_else(no_such)
    }
}
