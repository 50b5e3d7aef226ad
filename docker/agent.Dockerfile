# The node agent, and the command line to look at it.
#
#   docker build -f docker/agent.Dockerfile -t cadastre-agent .
#
# The build is "make dist", which needs no engine.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make dist

FROM scratch
COPY --from=build /src/bin/dist/cadastre-agent /src/bin/dist/cadastre /
# Root, since its sockets are for root; of what root may do it needs CAP_NET_ADMIN,
# and that only for routes.
USER 0:0
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/cadastre", "status", "--live"]
ENTRYPOINT ["/cadastre-agent"]
