// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// dockerConf enables the Docker driver.
const dockerConf = `
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre: {docker: {enabled: true, socket: DIR/docker.sock}}
`

// withEngine calls test with a Docker engine that has requested one pool with a
// gateway and a container: of an agent, and of Docker's plugin without an agent.
func withEngine(t *testing.T, test func(e engine, space string)) {
	t.Run("agent", func(t *testing.T) {
		m := newMachine(t, dockerConf)
		m.startAgent()
		test(occupied(m), "LocalDefault")
	})
	t.Run("plugin", func(t *testing.T) {
		m := newMachine(t, "")
		m.Expect(os.Mkdir(m.path("data"), 0o700)).To(Succeed())
		m.socket = m.path("data/agent.sock")
		m.start("cadastre-docker-plugin", "--socket", m.path("docker.sock"), "--agent", m.path("none.sock"), "--data", m.path("data"))
		m.awaitReady()
		test(occupied(m), "PluginLocal")
	})
}

func occupied(m *machine) engine {
	e := engine{m, m.path("docker.sock")}
	pool := e.pool("10.50.0.0/24")
	m.Expect(e.gateway(pool)).To(Equal("10.50.0.1/24"))
	m.Expect(e.container(pool, "02:42:0a:32:00:02")).To(Equal("10.50.0.2/24"))
	return e
}

// An address of Docker is not released by its address alone: the refusal names
// the holder and the command that releases it, and that command does.
func TestReleaseNamesDocker(t *testing.T) {
	withEngine(t, func(e engine, space string) {
		id := space + "/10.50.0.0/24"
		command := "cadastre release --ip 10.50.0.2 --docker-pool '" + id + "'"
		for _, args := range []string{"--ip 10.50.0.2", "--ip 10.50.0.2 --yes", "--container 02:42:0a:32:00:02 --yes"} {
			got := e.cadastre(append([]string{"release"}, strings.Fields(args)...)...)
			e.Expect(got).To(Equal(outcome{1, "", "cadastre: nothing was released: 10.50.0.2: Docker holds it for the endpoint with MAC 02:42:0a:32:00:02 in pool " + id +
				", and releases it when the container stops; if the engine has lost the container: " + command + "\n"}), args)
		}
		e.Expect(e.cadastre("release", "--ip", "10.50.0.1", "--yes")).To(Equal(outcome{1, "", "cadastre: nothing was released: 10.50.0.1: Docker holds it as the gateway of pool " + id +
			", and releases it with the network (docker network rm); if the engine has lost the network: cadastre docker pools release '" + id + "'\n"}))
		e.Expect(e.cadastre("release", "--ip", "10.50.0.2", "--docker-pool", "other")).To(And(HaveField("Code", 1),
			HaveField("Err", ContainSubstring("in pool "+id+", not in pool other"))))
		e.Expect(e.container(id, "02:42:0a:32:00:03")).To(Equal("10.50.0.3/24"), "10.50.0.2 is still leased")

		args := strings.Fields(strings.ReplaceAll(strings.TrimPrefix(command, "cadastre "), "'", ""))
		e.Expect(e.cadastre(append(args, "--yes")...)).To(HaveField("Out", HaveSuffix("released 1 address: 10.50.0.2\n")))
		e.Expect(e.container(id, "02:42:0a:32:00:04")).To(Equal("10.50.0.2/24"))
	})
}

// An address of a pod or of the node is not Docker's.
func TestReleaseOfDockerIsOfDocker(t *testing.T) {
	m := newMachine(t, dockerConf)
	m.startAgent()
	m.Expect(m.pod("ADD", "web").Code).To(BeZero())
	for ip, want := range map[string]string{
		"10.1.1.2": `10.1.1.2: it is not Docker's: pod default/web holds it in pool "default"`,
		"10.1.1.1": "10.1.1.1: it is not Docker's: the node itself uses it (gateway)",
	} {
		m.Expect(m.cadastre("release", "--ip", ip, "--docker-pool", "LocalDefault/10.1.1.0/28")).To(Equal(outcome{1, "", "cadastre: nothing was released: " + want + "\n"}))
	}
}

func TestDockerPools(t *testing.T) {
	withEngine(t, func(e engine, space string) {
		e.post("IpamDriver.RequestPool", map[string]any{
			"AddressSpace": space, "Pool": "10.51.0.0/24", "SubPool": "10.51.0.128/25", "Options": map[string]string{"cadastre.group": "blue"},
		}, "PoolID")
		e.Expect(e.pool("0.0.0.0/24")).To(HavePrefix(space))
		e.Expect(e.pool("10.50.0.0/24")).To(Equal(space + "/10.50.0.0/24"))
		got := e.cadastre("docker", "pools")
		e.Expect(got.Code).To(BeZero(), got.Err)
		var rows []string
		for _, line := range strings.Split(strings.TrimSpace(got.Out), "\n") {
			rows = append(rows, strings.Join(strings.Fields(line), " "))
		}
		e.Expect(rows).To(ContainElements(
			"POOL CIDR SUB-POOL LEASES REQUESTS REQUESTED WITH",
			space+"/10.50.0.0/24 10.50.0.0/24 - 2 2 its subnet",
			space+"/10.51.0.0/24/10.51.0.128/25?group=blue 10.51.0.0/24 10.51.0.128/25 0 1 its subnet, cadastre.group=blue",
		))
		e.Expect(rows).To(ContainElement(HaveSuffix(" 0 1 no subnet")))
	})
}

// A pool with leases is released only with --force, which says what it means; a
// pool without, after a yes.
func TestReleaseOfADockerPool(t *testing.T) {
	withEngine(t, func(e engine, space string) {
		id, idle := space+"/10.50.0.0/24", e.pool("10.52.0.0/24")
		release := func(stdin string, args ...string) outcome {
			return e.run(nil, stdin, "cadastre", append([]string{"docker", "pools", "release"}, args...)...)
		}
		got := release("", id, "--yes")
		e.Expect(got.Code).To(Equal(1))
		e.Expect(got.Err).To(And(ContainSubstring("addresses of the pool are in use: 10.50.0.1 is held by the gateway, 10.50.0.2 is held by the endpoint with MAC 02:42:0a:32:00:02\n"),
			ContainSubstring("docker network rm"), ContainSubstring("--force")))
		got = release("n\n", id, "--force")
		e.Expect(got.Code).To(Equal(1))
		e.Expect(got.Err).To(And(ContainSubstring("Its 2 addresses will be free for other networks, whether or not a container still uses them."), HaveSuffix("nothing was released\n")))
		e.Expect(e.container(id, "02:42:0a:32:00:03")).To(Equal("10.50.0.3/24"))

		e.Expect(release("y\n", idle)).To(And(HaveField("Code", 0), HaveField("Out", "released pool "+idle+" and 0 addresses in it\n")))
		e.Expect(release("y\n", id, "--force")).To(And(HaveField("Code", 0), HaveField("Out", "released pool "+id+" and 3 addresses in it\n")))
		e.Expect(e.cadastre("docker", "pools").Out).To(Equal("no pools\n"))
		e.Expect(e.container(id, "02:42:0a:32:00:05")).To(ContainSubstring("cannot find address pool"), "a network that still uses the pool")
		e.Expect(e.container(e.pool("10.50.0.0/25"), "02:42:0a:32:00:06")).To(Equal("10.50.0.1/25"), "another network gets its addresses")
		e.Expect(release("", "LocalDefault/10.99.0.0/24", "--yes")).To(And(HaveField("Code", 1), HaveField("Err", ContainSubstring("there is no such pool: cadastre docker pools lists them"))))
	})
}

// An agent without Docker says how to enable it.
func TestDockerPoolsWithoutDocker(t *testing.T) {
	m := newMachine(t, "ipamConfig: {podSubnetCIDR: 10.1.0.0/16}")
	m.startAgent()
	m.Expect(m.cadastre("docker", "pools")).To(And(HaveField("Code", 1), HaveField("Err", ContainSubstring("Docker is not enabled in this agent: set cadastre.docker.enabled"))))
}
