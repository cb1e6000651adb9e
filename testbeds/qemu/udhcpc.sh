#!/bin/sh
# Takes what the DHCP server offers.
[ "$1" = bound ] || [ "$1" = renew ] || exit 0
# shellcheck disable=SC2154
ip addr add "$ip/${mask:-24}" dev "$interface"
# shellcheck disable=SC2154
[ -z "$router" ] || ip route add default via "${router%% *}"
