# The node agent with the data plane in VPP, and the command line to look at it. VPP itself is
# not in it: it runs on the node.
#
#   docker build -f docker/agent-vpp.Dockerfile -t cadastre-agent-vpp .
#
# The build is "make dist dist-vpp", which needs no engine.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY . .
RUN make dist dist-vpp

FROM scratch
COPY --from=build /src/bin/dist/cadastre-agent-vpp /cadastre-agent
COPY --from=build /src/bin/dist/cadastre /
# As agent.Dockerfile: root, with the capabilities of the pod.
USER 0:0
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/cadastre", "status", "--live"]
ENTRYPOINT ["/cadastre-agent"]
