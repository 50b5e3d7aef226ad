module github.com/cadastre/cadastre/test/peers/cni

go 1.26.0

require (
	github.com/cadastre/cadastre/test/peers/workload v0.0.0
	github.com/containernetworking/cni v1.3.0
	github.com/containernetworking/plugins v1.9.1
	golang.org/x/sys v0.35.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/coreos/go-iptables v0.8.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/safchain/ethtool v0.6.2 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	sigs.k8s.io/knftables v0.0.18 // indirect
)

replace github.com/cadastre/cadastre/test/peers/workload => ../workload
