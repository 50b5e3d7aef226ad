// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cadastre/cadastre/test/peers/workload"
)

const (
	// burstOfPods is the number of pods of a burst.
	burstOfPods = 30
	// rounds is the number of turns of one iteration: an iteration lasts seconds. Without
	// other pods there are more.
	rounds, moreRounds = 5, 15
	// mostOthers leaves room for a burst: a bridge has 1023 ports at most.
	mostOthers = 990
)

func needRoot(b *testing.B) {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("NOT RUN: network namespaces need root")
	}
}

// BenchmarkMainPlugin is an ADD and a DEL of a dual-stack pod with its interface, and of
// thirty at once, by ours, by bridge with host-local and by kindnet's plugin in turns, with
// a number of other pods on each node. gone30 is the time from the begin of the thirty DELs
// until the last link is removed: ours does so behind its answers. Before the next turn
// everything is removed. A failure of kindnet's plugin is counted and its time is not.
func BenchmarkMainPlugin(b *testing.B) {
	needRoot(b)
	for _, others := range []int{0, 250, mostOthers} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			ours := newWiredNode(b)
			maker := &podMaker{tb: b, prefix: fmt.Sprint(others)}
			ours.await(maker.pods(1)[0])
			plugins := []mainPlugin{ours.mainPlugin, newBridge(b)}
			if p, ok := newKindnet(b); ok && others < mostOthers { // it would take minutes
				plugins = append(plugins, p)
			}
			for _, p := range plugins {
				maker.fill(p, others+1) // the first makes the bridge
			}
			took, failed := map[string][]time.Duration{}, 0
			turns := rounds
			if others == 0 {
				turns = moreRounds
			}
			for b.Loop() {
				for range turns {
					for _, p := range plugins {
						failed += turn(b, p, maker, took)
					}
				}
			}
			for name, times := range took {
				workload.ReportTimes(b, name, times, 1)
			}
			b.ReportMetric(float64(failed), "kindnet-failed")
		})
	}
}

// turn is one turn of a plugin. It returns the number of calls that kindnet's plugin failed.
func turn(b *testing.B, p mainPlugin, maker *podMaker, took map[string][]time.Duration) (failed int) {
	b.Helper()
	before := -1
	for _, x := range []struct {
		suffix string
		pods   []benchPod
	}{{"", maker.pods(1)}, {"30", maker.pods(burstOfPods)}} {
		for _, command := range []string{"ADD", "DEL"} {
			if before < 0 || command == "ADD" {
				before = p.links(b)
			}
			began := time.Now()
			d, err := p.all(command, x.pods...)
			name := p.name + "-" + strings.ToLower(command) + x.suffix
			switch {
			case err == nil:
				took[name] = append(took[name], d)
			case p.name == "kindnet": // its database is busy
				failed++
				b.Logf("%s of %d: %v", command, len(x.pods), err)
			default:
				b.Fatal(err)
			}
			if command == "ADD" {
				if n := p.links(b); err == nil && n < before+len(x.pods) {
					b.Fatalf("%s: %d links after %d pods, %d before", p.name, n, len(x.pods), before)
				}
				continue
			}
			for tries := 0; err != nil && tries < 10; tries++ { // as a runtime repeats it
				_, err = p.all("DEL", x.pods...)
			}
			p.awaitRemoval(b, before)
			name = p.name + "-gone" + x.suffix
			took[name] = append(took[name], time.Since(began))
		}
	}
	return failed
}

// BenchmarkKilled kills the agent of a node with 250 pods and starts it again. resync is the
// time of the first resync, as the agent's history has it; serving is the time from the
// start of the process until an ADD has ended, with the process of that ADD.
func BenchmarkKilled(b *testing.B) {
	needRoot(b)
	n := newWiredNode(b)
	maker := &podMaker{tb: b, prefix: "killed"}
	n.await(maker.pods(1)[0])
	maker.fill(n.mainPlugin, 250)
	var resync, serving []time.Duration
	for b.Loop() {
		for range rounds {
			pod := maker.pods(1)[0]
			n.end(syscall.SIGKILL)
			began := time.Now()
			n.start()
			n.await(pod)
			serving = append(serving, time.Since(began))
			resync = append(resync, n.resyncTime())
			if err := n.call("DEL", pod); err != nil {
				b.Fatal(err)
			}
		}
	}
	workload.ReportTimes(b, "resync", resync, 1)
	workload.ReportTimes(b, "serving", serving, 1)
}

// resyncTime returns how long the agent has processed the resyncs since its start.
func (n *wiredNode) resyncTime() (sum time.Duration) {
	n.tb.Helper()
	a := connect(filepath.Join(n.run, "agent.sock"))
	defer a.client.CloseIdleConnections()
	resp, err := a.client.Get("http://cadastre/v1/events")
	if err != nil {
		n.tb.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		n.tb.Fatalf("the history of the agent: %s", resp.Status)
	}
	lines, found := json.NewDecoder(resp.Body), 0
	for {
		var record struct {
			Name                           string
			ProcessingStart, ProcessingEnd time.Time
		}
		err := lines.Decode(&record)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			n.tb.Fatal(err)
		}
		if strings.Contains(record.Name, "Resync") {
			sum += record.ProcessingEnd.Sub(record.ProcessingStart)
			found++
		}
	}
	if found == 0 {
		n.tb.Fatal("the history of the agent has no resync")
	}
	return sum
}

// BenchmarkThroughput sends over TCP from one pod of a node to another.
func BenchmarkThroughput(b *testing.B) {
	needRoot(b)
	const total = 256 << 20
	ours := newWiredNode(b)
	maker := &podMaker{tb: b, prefix: "tcp"}
	ours.await(maker.pods(1)[0])
	var steps []workload.Step
	for _, p := range []mainPlugin{ours.mainPlugin, newBridge(b)} {
		pods := maker.fill(p, 2)
		steps = append(steps, workload.Step{Name: p.name, Run: func() error { return transfer(pods[0], pods[1], total) }})
	}
	workload.Turns(b, steps...)
}

// transfer sends bytes over TCP between two pods.
func transfer(from, to benchPod, total int64) error {
	var listener net.Listener
	err := inside(to.netns, func() error {
		addr, err := podAddress()
		if err == nil {
			listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		}
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- inside(from.netns, func() error {
			conn, err := net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			defer conn.Close()
			buffer := make([]byte, 1<<16)
			for left := total; left > 0 && err == nil; left -= int64(len(buffer)) {
				_, err = conn.Write(buffer)
			}
			return err
		})
	}()
	conn, err := listener.Accept()
	if err != nil {
		return errors.Join(err, <-sent)
	}
	defer conn.Close()
	n, err := io.CopyN(io.Discard, conn, total)
	if err == nil && n != total {
		err = fmt.Errorf("%d of %d bytes have arrived", n, total)
	}
	return errors.Join(err, <-sent)
}

// podAddress returns the IPv4 address of eth0 in the network namespace of the thread.
func podAddress() (string, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", err
	}
	all, err := link.Addrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", fmt.Errorf("eth0 has no IPv4 address: %v", all)
}
