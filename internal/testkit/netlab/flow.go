// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// Flow sends numbered packets in a fixed interval to an echo, each once, and counts those
// that come back.
type Flow struct {
	Name   string
	client *net.UDPConn
	server *Echo
	stop   chan struct{}
	all    sync.WaitGroup
	sender sync.WaitGroup

	dropped int       // packets that the machine had dropped before
	stopped time.Time // when the last packet was sent

	mu   sync.Mutex
	sent []time.Time
	back map[uint64]bool
	last time.Time // when the last new one came back

	unsent map[uint64]error
}

// interval is the time between two packets of a flow.
const interval = 2 * time.Millisecond

// pace is the time between two looks.
const pace = 5 * time.Millisecond

// NewFlow begins a flow, and waits until the first packets have come back.
func NewFlow(t testing.TB, from, to Place, is4 bool) *Flow {
	t.Helper()
	server := NewEcho(t, to.Net, netip.AddrPortFrom(to.Addr(is4), 0))
	f := &Flow{
		Name:   fmt.Sprintf("%s %s to %s %s", from.Name, from.Addr(is4), to.Name, to.Addr(is4)),
		client: Dial(t, from.Net, server.At()),
		server: server,
		stop:   make(chan struct{}),
		back:   map[uint64]bool{},
		unsent: map[uint64]error{},
	}
	f.begin()
	t.Cleanup(f.close)
	gomega.NewWithT(t).Eventually(f.received, patience, pace).Should(gomega.BeNumerically(">=", 5), f.Name)
	// The first packets may meet a neighbour that is not known yet.
	f.mu.Lock()
	f.sent, f.back = f.sent[:0:0], map[uint64]bool{}
	f.mu.Unlock()
	return f
}

func (f *Flow) begin() {
	f.dropped = drops()
	f.sender.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			number, now := uint64(len(f.sent)), time.Now()
			f.sent = append(f.sent, now)
			f.mu.Unlock()
			packet := binary.BigEndian.AppendUint64(nil, number)
			if _, err := f.client.Write(binary.BigEndian.AppendUint64(packet, uint64(now.UnixNano()))); err != nil {
				f.mu.Lock()
				f.unsent[number] = err
				f.mu.Unlock()
			}
		}
	})
	f.all.Go(func() {
		buf := make([]byte, 64)
		for {
			n, err := f.client.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n != 16 {
				continue
			}
			number, stamp := binary.BigEndian.Uint64(buf), int64(binary.BigEndian.Uint64(buf[8:]))
			f.mu.Lock()
			if number < uint64(len(f.sent)) && f.sent[number].UnixNano() == stamp && !f.back[number] {
				f.back[number], f.last = true, time.Now()
			}
			f.mu.Unlock()
		}
	})
}

func (f *Flow) received() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.back)
}

// ReceivedSince returns the number of packets that were sent since and have come back.
func (f *Flow) ReceivedSince(since time.Time) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.sent) - 1; i >= 0 && f.sent[i].After(since); i-- {
		if f.back[uint64(i)] {
			n++
		}
	}
	return n
}

// Halt ends the sending.
func (f *Flow) Halt() {
	select {
	case <-f.stop:
		return
	default:
		close(f.stop)
	}
	f.sender.Wait()
	f.stopped = time.Now()
}

func (f *Flow) close() {
	f.Halt()
	_ = f.client.Close() // a second time
	f.all.Wait()
	f.server.Close()
}

// Loss holds the outcome of a flow.
type Loss struct {
	Sent, Lost int
	Dropped    int           // packets that a busy machine has dropped meanwhile
	Outage     time.Duration // the longest time in which all packets were lost
	detail     string        // the first lost packet
}

func (l Loss) String() string {
	return fmt.Sprintf(
		"%d of %d packets lost, at most %d ms in a row",
		l.Lost,
		l.Sent,
		l.Outage.Milliseconds(),
	) + l.detail
}

// quiet is the time without a further packet after which the missing ones are lost.
const quiet = 500 * time.Millisecond

// End ends the flow, and waits for the packets that are under way.
func (f *Flow) End() (l Loss) {
	f.Halt()
	for {
		f.mu.Lock()
		missing, since := len(f.sent)-len(f.back), time.Since(f.last)
		f.mu.Unlock()
		if missing == 0 || since > quiet && time.Since(f.stopped) > quiet {
			break
		}
		<-time.After(pace)
	}
	f.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	var began time.Time
	for i, at := range f.sent {
		switch {
		case f.back[uint64(i)]:
			if !began.IsZero() {
				l.Outage = max(l.Outage, at.Sub(began))
			}
			began = time.Time{}
		case began.IsZero():
			began = at
			if l.detail == "" {
				l.detail = fmt.Sprintf(" (first packet %d of %d, %v)", i, len(f.sent), f.unsent[uint64(i)])
			}
		}
	}
	l.Sent, l.Lost, l.Dropped = len(f.sent), len(f.sent)-len(f.back), drops()-f.dropped
	return l
}

// Halted ends the sending of flows at once, so that one wait serves the packets of all that
// are under way.
func Halted(flows []*Flow) []*Flow {
	for _, f := range flows {
		f.Halt()
	}
	return flows
}

// drops returns the number of packets that the machine has dropped because a queue of a
// processor was full: its programs share these, whatever their namespaces.
func drops() (n int) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var processed, dropped int
		if _, err := fmt.Sscanf(line, "%x %x", &processed, &dropped); err == nil {
			n += dropped
		}
	}
	return n
}
