# The node agent with a cloud, and the command line to look at it.
#
#   docker build -f docker/agent-cloud.Dockerfile --build-arg CLOUD=ec2 -t cadastre-agent-ec2 .
#
# The build is "make dist dist-providers PROVIDERS=ec2", which needs no engine.
FROM golang:1.26.8-bookworm AS build
ARG CLOUD
WORKDIR /src
COPY . .
RUN make dist dist-providers PROVIDERS=${CLOUD}

FROM scratch
ARG CLOUD
COPY --from=build /src/bin/dist/cadastre-agent-${CLOUD} /cadastre-agent
COPY --from=build /src/bin/dist/cadastre /
# Clouds are reached over TLS.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# As agent.Dockerfile: root, with the capabilities of the pod.
USER 0:0
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/cadastre", "status", "--live"]
ENTRYPOINT ["/cadastre-agent"]
