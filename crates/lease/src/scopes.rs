//! The interface of lessees to scopes, and to the buildsets of Zuul, which are shown as scopes.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{
    Label, Node, NodeId, NodeRequest, NodeState, RequestId, TenantName, Timestamp, layout,
};
use nodeyard_store::registry::Stored;
use nodeyard_store::view::Changes;
use nodeyard_store::{self as store, CreateMode, TreePath, Version, ext};
use serde_json::Value;

use crate::buildsets;
use crate::context::{self, json, scope_path};
use crate::decide::later;
use crate::error::{Error, Result};
use crate::ids::ScopeId;
use crate::inventory::inventory;
use crate::lease::LeasedNodeState;
use crate::leases::{LeaseStatus, Leases};
use crate::scope::{LeaseScope, ScopeName};
use crate::spec::{self, Lessee};

/// A scope, its leases and nodes.
#[derive(Debug, Clone)]
pub enum ScopeStatus {
    /// A scope of leases.
    Own {
        id: ScopeId,
        scope: Arc<LeaseScope>,
        leases: Vec<LeaseStatus>,
    },
    /// A buildset of Zuul, which is read-only.
    Buildset(ZuulBuildset),
}

/// The requests and nodes of a buildset of Zuul whose requests this process has seen.
#[derive(Debug, Clone)]
pub struct ZuulBuildset {
    /// `zuul:` and the id of the buildset.
    pub name: ScopeName,
    pub tenant: Option<TenantName>,
    pub pipeline: Option<Box<str>>,
    /// Those that are not fulfilled, or whose nodes are not in use yet.
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

    /// Returns the nodes that are in use.
    pub fn nodes(&self) -> Vec<(NodeId, Label, Arc<Node>)> {
        match self {
            Self::Own { leases, .. } => {
                let nodes = leases.iter().flat_map(|status| &status.nodes);
                nodes
                    .filter(|seen| seen.leased.state == LeasedNodeState::Leased)
                    .filter_map(|seen| Some((seen, seen.node.clone()?)))
                    .filter(|(_, node)| node.state == NodeState::InUse)
                    .map(|(seen, node)| (seen.leased.node, seen.leased.label.clone(), node))
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

    /// Returns the nodes as an Ansible inventory, in the format of `ansible-inventory --list`.
    pub fn inventory(&self) -> Value {
        let nodes = self.nodes();
        inventory(nodes.iter().map(|(id, label, node)| (*id, label, &**node)))
    }
}

impl Leases {
    /// Opens a scope. Its leases end when it expires.
    pub async fn open_scope(
        &self,
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        duration: u64,
    ) -> Result<Arc<LeaseScope>> {
        spec::check_duration(duration)?;
        spec::check_text("name of the caller", &caller.name)?;
        buildsets::reject_zuul_scope(name)?;
        let tenant = caller.resolve_tenant(tenant)?;
        let path = scope_path(ScopeId::of_name(tenant.as_ref(), name.as_str()))?;
        let now = self.context.clock.now();
        let scope = LeaseScope {
            name: name.clone(),
            tenant,
            owner: caller.name.clone(),
            created: now,
            expires: Some(later(now, Duration::from_secs(duration))),
            duration: Some(duration),
            provider: None,
            closing: false,
        };
        let data = json(&path, &scope)?;
        let tree = &**self.context.tree();
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

    /// Extends a scope from now on; returns the new expiry. A scope that exists as long as its leases expires from then on.
    /// Also an overdue scope can be renewed until it is closing.
    pub async fn renew_scope(
        &self,
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        duration: Option<u64>,
    ) -> Result<Option<Timestamp>> {
        duration.map_or(Ok(()), spec::check_duration)?;
        let now = self.context.clock.now();
        let change = |scope: &mut LeaseScope| {
            if scope.closing {
                return Err(Error::ScopeClosing {
                    scope: name.clone(),
                });
            }
            scope.duration = duration.or(scope.duration);
            let duration = scope.duration.map(Duration::from_secs);
            scope.expires = duration.map(|duration| later(now, duration));
            Ok(())
        };
        let scope = self.change_scope(caller, tenant, name, change).await?;
        Ok(scope.expires)
    }

    /// Closes a scope. Returns when that is recorded; its leases end one by one.
    pub async fn close_scope(
        &self,
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<Arc<LeaseScope>> {
        let close = |scope: &mut LeaseScope| {
            scope.closing = true;
            Ok(())
        };
        let closed = self.change_scope(caller, tenant, name, close).await?;
        Ok(Arc::new(closed))
    }

    /// Reads a scope, or a buildset of Zuul. Callers without a tenant name that of the scope.
    pub async fn scope(
        &self,
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<ScopeStatus> {
        if buildsets::is_zuul_scope(name) {
            let found = self.context.buildsets.list(&self.context);
            let mut found = found.into_iter().filter(|buildset| buildset.name == *name);
            let found = found.find(|buildset| caller.may_see(buildset.tenant.as_ref()));
            return found.map(ScopeStatus::Buildset).ok_or(Error::NoSuchScope {
                scope: name.clone(),
            });
        }
        let (id, stored) = self.read_scope(caller, tenant, name).await?;
        // Includes leases that were just created.
        self.context.leases.synced().await?;
        Ok(ScopeStatus::Own {
            id,
            scope: Arc::new(stored.value),
            leases: self.members(id),
        })
    }

    /// Returns all scopes that the caller may see, from the cached views; buildsets last.
    pub fn scopes(&self, caller: &Lessee) -> Vec<ScopeStatus> {
        let own = self.context.scopes.items().into_iter();
        let own = own.map(|item| ScopeStatus::Own {
            id: item.id,
            leases: self.members(item.id),
            scope: item.value,
        });
        let buildsets = self.context.buildsets.list(&self.context).into_iter();
        own.chain(buildsets.map(ScopeStatus::Buildset))
            .filter(|scope| caller.may_see(scope.tenant()))
            .collect()
    }

    /// Returns a stream of the scopes that change from now on, except for buildsets.
    pub fn scope_changes(&self) -> Changes<ScopeId> {
        self.context.scopes.changes()
    }

    async fn change_scope(
        &self,
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
        change: impl Fn(&mut LeaseScope) -> Result<()>,
    ) -> Result<LeaseScope> {
        buildsets::reject_zuul_scope(name)?;
        self.retry(|| async {
            loop {
                let (id, stored) = self.read_scope(caller, tenant, name).await?;
                let mut scope = stored.value;
                change(&mut scope)?;
                let path = scope_path(id)?;
                let version = Version::Exactly(stored.stat.version);
                let written = self
                    .context
                    .tree()
                    .set(&path, json(&path, &scope)?, version);
                match written.await {
                    Ok(stat) => {
                        self.context.scopes.wrote(id, Arc::new(scope.clone()), stat);
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
        caller: &Lessee,
        tenant: Option<&TenantName>,
        name: &ScopeName,
    ) -> Result<(ScopeId, Stored<LeaseScope>)> {
        let no_such = || Error::NoSuchScope {
            scope: name.clone(),
        };
        let tenant = caller.resolve_tenant(tenant).map_err(|_| no_such())?;
        let id = ScopeId::of_name(tenant.as_ref(), name.as_str());
        let path = scope_path(id)?;
        let stored = self
            .retry(|| async { Ok(context::read(&**self.context.tree(), &path).await?) })
            .await?;
        stored.map(|stored| (id, stored)).ok_or_else(no_such)
    }
}
