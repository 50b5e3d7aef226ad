# What puts the CNI plugin on a node: run it with the node's directory mounted.
#
#   docker build -f docker/cni.Dockerfile -t cadastre-cni .
#   docker run --rm -v /opt/cni/bin:/host/opt/cni/bin cadastre-cni
#
# The build is "make dist", which needs no engine.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make dist

FROM scratch
COPY --from=build /src/bin/dist/cadastre-cni /src/bin/dist/cni-installer /
# Root, since the directory is root's.
USER 0:0
ENTRYPOINT ["/cni-installer"]
CMD ["/cadastre-cni=/host/opt/cni/bin/cadastre-cni"]
