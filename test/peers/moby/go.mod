module github.com/cadastre/cadastre/test/peers/moby

go 1.26.3

require (
	github.com/cadastre/cadastre/test/peers/workload v0.0.0
	github.com/moby/moby/v2 v2.0.0-beta.24
)

require (
	github.com/containerd/errdefs v1.0.0 // indirect
	github.com/containerd/log v0.2.0 // indirect
	github.com/ishidawataru/sctp v0.0.0-20251114114122-19ddcbc6aae2 // indirect
	github.com/moby/moby/api v1.56.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/cadastre/cadastre/test/peers/workload => ../workload
