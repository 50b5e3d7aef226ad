// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// pace is the pause between two exchanges of a Talk.
const pace = 5 * time.Millisecond

// Talk is two ends that exchange packets all the time. Nothing is sent twice: a
// way that is gone for a moment, in either direction, ends it.
type Talk struct {
	from, to         End
	caller, answerer *net.UDPConn
	exchanges        atomic.Uint64
	stop             chan struct{}
	done             chan struct{} // closed when it has ended, with err set
	err              error
}

// NewTalk makes two ends talk, until End.
func NewTalk(from, to End) (*Talk, error) {
	t := &Talk{from: from, to: to, stop: make(chan struct{}), done: make(chan struct{})}
	err := to.Within(func() (err error) {
		t.answerer, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Address, 0)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s %s: %w", to.Name, to.Address, err)
	}
	err = from.Within(func() (err error) {
		t.caller, err = net.DialUDP("udp", nil, t.answerer.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("talk from %s %s: %w", from.Name, from.Address, err), t.answerer.Close())
	}
	go t.run()
	return t, nil
}

func (t *Talk) run() {
	defer close(t.done)
	again := time.NewTicker(pace)
	defer again.Stop()
	for t.err == nil {
		select {
		case <-t.stop:
			return
		case <-again.C:
		}
		if err := t.exchange(t.exchanges.Load()); err != nil {
			t.err = fmt.Errorf(
				"after %d exchanges between %s %s and %s %s: %w",
				t.Exchanges(),
				t.from.Name,
				t.from.Address,
				t.to.Name,
				t.to.Address,
				err,
			)
			return
		}
		t.exchanges.Add(1)
	}
}

// exchange sends a number one way and back.
func (t *Talk) exchange(number uint64) error {
	late := time.Now().Add(patience)
	if err := errors.Join(t.caller.SetDeadline(late), t.answerer.SetDeadline(late)); err != nil {
		return err
	}
	packet := binary.BigEndian.AppendUint64(nil, number)
	if _, err := t.caller.Write(packet); err != nil {
		return err
	}
	buf := make([]byte, len(packet))
	_, caller, err := t.answerer.ReadFromUDPAddrPort(buf)
	if err != nil {
		return fmt.Errorf("a packet does not arrive: %w", err)
	}
	if _, err := t.answerer.WriteToUDPAddrPort(buf, caller); err != nil {
		return err
	}
	if _, err := t.caller.Read(buf); err != nil {
		return fmt.Errorf("a packet does not come back: %w", err)
	}
	if got := binary.BigEndian.Uint64(buf); got != number {
		return fmt.Errorf("packet %d came back, not %d", got, number)
	}
	return nil
}

// Exchanges returns the number of exchanges so far.
func (t *Talk) Exchanges() uint64 { return t.exchanges.Load() }

// Err returns the reason why it has ended by itself, nil while it goes on.
func (t *Talk) Err() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

// End ends it. It fails if it had ended by itself.
func (t *Talk) End() error {
	close(t.stop)
	<-t.done
	return errors.Join(t.err, t.caller.Close(), t.answerer.Close())
}
