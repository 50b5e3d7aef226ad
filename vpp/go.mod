module github.com/cadastre/cadastre/vpp

go 1.26.0

require (
	github.com/cadastre/cadastre v0.0.0-00010101000000-000000000000
	go.fd.io/govpp v0.13.0
)

require (
	github.com/lunixbochs/struc v0.0.0-20200521075829-a4cb8d33dbbe // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/cadastre/cadastre => ..
