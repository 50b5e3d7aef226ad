# The cluster's operator with a cloud.
#
#   docker build -f docker/operator-cloud.Dockerfile --build-arg CLOUD=openstack -t cadastre-operator-openstack .
#
# The build is "make dist-providers PROVIDERS=openstack", which needs no engine.
FROM golang:1.26.8-bookworm AS build
ARG CLOUD
WORKDIR /src
COPY . .
RUN make dist-providers PROVIDERS=${CLOUD}

FROM scratch
ARG CLOUD
COPY --from=build /src/bin/dist/cadastre-operator-${CLOUD} /cadastre-operator
# Clouds are reached over TLS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# It has no files and no sockets of its own.
USER 65532:65532
ENTRYPOINT ["/cadastre-operator"]
