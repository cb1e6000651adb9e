#!/bin/sh
# Runs a cluster until it is killed. It is the first process of namespaces of its own (processes, mounts, network), so
# that everything it starts, mounts and routes goes with it; whoever starts it puts `eth0` into its network.
#
# usage: start.sh DIRECTORY PROGRAM IMAGES, with the variables ADDRESS, PREFIX, GATEWAY, POD_NET, SERVICE_NET and CGROUP
set -eu
dir="$1"
cluster="$2"
images="$3"

# Places that are the same for every cluster become this one's own.
for place in /run /var/log /var/lib/kubelet; do
    mkdir -p "$place"
    mount -t tmpfs tmpfs "$place"
done
# The kubelet sets these for the whole machine; here it writes to copies.
for tunable in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    mkdir -p "$dir/tunables/$(dirname "$tunable")"
    cat "/proc/sys/$tunable" > "$dir/tunables/$tunable"
    mount --bind "$dir/tunables/$tunable" "/proc/sys/$tunable"
done
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$CGROUP"
else
    for controller in /sys/fs/cgroup/*/; do
        mkdir -p "$controller$CGROUP"
    done
fi
if [ -f "/sys/fs/cgroup/cpuset/$CGROUP/cpuset.cpus" ]; then
    cat /sys/fs/cgroup/cpuset/cpuset.cpus > "/sys/fs/cgroup/cpuset/$CGROUP/cpuset.cpus"
    cat /sys/fs/cgroup/cpuset/cpuset.mems > "/sys/fs/cgroup/cpuset/$CGROUP/cpuset.mems"
fi

ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add "$ADDRESS/$PREFIX" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"
echo 1 > /proc/sys/net/ipv4/ip_forward

run() {
    name="$1"
    shift
    "$@" >> "$dir/$name.log" 2>&1 &
}

set --
if [ -f "$dir/audit.yaml" ]; then
    set -- --audit-policy-file="$dir/audit.yaml" --audit-log-path="$dir/audit.log"
fi

run etcd "$cluster" etcd --data-dir="$dir/etcd" --unsafe-no-fsync --log-level=warn
run containerd containerd --config "$dir/containerd.toml"
run kube-apiserver "$cluster" kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address="$ADDRESS" --secure-port=6443 --service-cluster-ip-range="$SERVICE_NET" \
    --authorization-config="$dir/authorization.json" --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --client-ca-file="$dir/pki/ca.pem" \
    --tls-cert-file="$dir/pki/apiserver.crt.pem" --tls-private-key-file="$dir/pki/apiserver.key.pem" \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$dir/pki/accounts.crt.pem" \
    --service-account-signing-key-file="$dir/pki/accounts.key.pem" \
    --kubelet-client-certificate="$dir/pki/admin.crt.pem" --kubelet-client-key="$dir/pki/admin.key.pem" \
    --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$dir/pki/front-proxy-ca.pem" --requestheader-allowed-names=front-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$dir/pki/front-proxy.crt.pem" --proxy-client-key-file="$dir/pki/front-proxy.key.pem" \
    "$@"
run kube-controller-manager "$cluster" kube-controller-manager --kubeconfig="$dir/admin.kubeconfig" \
    --bind-address=127.0.0.1 --leader-elect=false --root-ca-file="$dir/pki/ca.pem" \
    --service-account-private-key-file="$dir/pki/accounts.key.pem" --kube-api-qps=500 --kube-api-burst=1000
run kube-scheduler "$cluster" kube-scheduler --kubeconfig="$dir/admin.kubeconfig" --bind-address=127.0.0.1 \
    --leader-elect=false
run kube-proxy "$cluster" kube-proxy --config="$dir/kube-proxy.yaml"

until ctr --address "$dir/containerd.sock" version >/dev/null 2>&1; do sleep 0.05; done
for image in "$images"/*.tar; do
    ctr --address "$dir/containerd.sock" --namespace k8s.io images import "$image" >> "$dir/images.log" 2>&1
done
run kubelet "$cluster" kubelet --config="$dir/kubelet.yaml" --kubeconfig="$dir/node.kubeconfig" \
    --hostname-override=node --node-ip="$ADDRESS" --root-dir="$dir/kubelet" --cert-dir="$dir/kubelet-pki"

export KUBECONFIG="$dir/admin.kubeconfig"
until [ "$("$cluster" kubectl get node node --output \
    jsonpath='{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; do
    sleep 0.2
done
# Pods of the first namespaces need it.
until "$cluster" kubectl get serviceaccount default >/dev/null 2>&1; do sleep 0.1; done
touch "$dir/ready"
wait
