module github.com/cadastre/cadastre/test/peers/limits

go 1.26.0

require github.com/cadastre/cadastre/test/peers/workload v0.0.0

replace github.com/cadastre/cadastre/test/peers/workload => ../workload
