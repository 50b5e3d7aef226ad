module github.com/cadastre/cadastre/providers/openstack

go 1.26.0

require (
	github.com/gophercloud/gophercloud/v2 v2.15.0
	github.com/onsi/gomega v1.44.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/cadastre/cadastre => ../..
