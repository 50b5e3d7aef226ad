# The cluster's operator.
#
#   docker build -f docker/operator.Dockerfile -t cadastre-operator .
#
# The build is "make dist", which needs no engine.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make dist

FROM scratch
COPY --from=build /src/bin/dist/cadastre-operator /
# It has no files and no sockets of its own: nobody will do.
USER 65532:65532
ENTRYPOINT ["/cadastre-operator"]
