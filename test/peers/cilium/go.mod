module github.com/cadastre/cadastre/test/peers/cilium

go 1.26.0

require (
	github.com/cadastre/cadastre/test/peers/workload v0.0.0
	github.com/cilium/cilium v1.20.2
)

require (
	github.com/petermattis/goid v0.0.0-20250813065127-a731cc31b4fe // indirect
	github.com/sasha-s/go-deadlock v0.3.9 // indirect
	go4.org/netipx v0.0.0-20231129151722-fdeea329fbba // indirect
	golang.org/x/sync v0.21.0 // indirect
)

replace github.com/cadastre/cadastre/test/peers/workload => ../workload
