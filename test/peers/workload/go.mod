module github.com/cadastre/cadastre/test/peers/workload

go 1.26.0
