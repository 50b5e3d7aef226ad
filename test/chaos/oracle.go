// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Key is one attachment.
type Key struct{ Network, ContainerID, IfName string }

// String is "network/containerID/ifName".
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// Verb is a request for an attachment. A GC frees nothing at once: what it does not
// list waits for the witnesses.
type Verb string

// Verbs.
const (
	Add   Verb = "ADD"
	Del   Verb = "DEL"
	Check Verb = "CHECK"
	GC    Verb = "GC"
)

// Fate is the outcome of a request for its client.
type Fate string

// Fates of requests.
const (
	Answered  Fate = "answered"  // with success
	Refused   Fate = "refused"   // answered with an error: nothing is changed
	NotSent   Fate = "not sent"  // there was no listener
	Lost      Fate = "lost"      // the agent died with it: it is done or not
	Abandoned Fate = "abandoned" // the client went away: the agent may still do it
)

// Outcome is a fate, with the addresses of an ADD that was answered.
type Outcome struct {
	Fate  Fate
	Addrs []netip.Addr // in order
}

// Told is the outcome of an ADD that was answered.
func Told(addrs ...netip.Addr) Outcome {
	addrs = slices.Clone(addrs)
	slices.SortFunc(addrs, netip.Addr.Compare)
	return Outcome{Fate: Answered, Addrs: addrs}
}

// Book lists the attachments with their addresses, in the order of the agent's list.
type Book []holding

// holding is one address and who holds it.
type holding struct {
	Key  Key
	Addr netip.Addr
}

// Oracle knows what may be held, from what clients were told. The requests of
// one attachment must follow each other; those of different ones need not. It
// is for one goroutine at a time.
type Oracle struct{ beliefs map[Key]*belief }

// belief holds the possible states of one attachment: no address (none), the address of
// an answer (told), an address without an answer (any).
type belief struct {
	none   bool
	told   []netip.Addr
	any    bool
	ghosts bool // an ADD was abandoned: the agent may do it at any time
	ending bool // a request is under way that may free
}

// NewOracle knows that nothing is held.
func NewOracle() *Oracle { return &Oracle{beliefs: map[Key]*belief{}} }

func (o *Oracle) belief(k Key) *belief {
	b := o.beliefs[k]
	if b == nil {
		b = &belief{none: true}
		o.beliefs[k] = b
	}
	return b
}

// certain is true where only what was told can be held.
func (b *belief) certain() bool { return !b.none && !b.any }

// Begin is called before a request is sent.
func (o *Oracle) Begin(k Key, v Verb) {
	if b := o.belief(k); v == Del {
		b.ending = true
	}
}

// Certain returns the leases of book that are still held, whatever the fate of the
// requests under way.
func (o *Oracle) Certain(book Book) (held Book) {
	for _, e := range book {
		b := o.beliefs[e.Key]
		if b != nil && b.certain() && !b.ending && slices.Contains(b.told, e.Addr) {
			held = append(held, e)
		}
	}
	return held
}

// End is called with the outcome of a request, and says what it contradicts.
func (o *Oracle) End(k Key, v Verb, out Outcome) error {
	b := o.belief(k)
	switch v {
	case Add:
		return o.endAdd(k, b, out)
	case Check:
		return endCheck(k, b, out)
	case GC:
		return nil
	}
	b.ending = false
	switch out.Fate {
	case Answered:
		*b = belief{none: true, any: b.ghosts, ghosts: b.ghosts}
	case Lost, Abandoned:
		b.none, b.any = true, b.any || b.ghosts
	}
	return nil
}

func (o *Oracle) endAdd(k Key, b *belief, out Outcome) error {
	switch out.Fate {
	case Refused:
		if b.certain() {
			return fmt.Errorf("ADD %s was refused, but it holds %v", k, b.told)
		}
	case Lost, Abandoned:
		b.any = b.any || b.none
		b.ghosts = b.ghosts || out.Fate == Abandoned
	case Answered:
		var errs []error
		if b.certain() && !slices.Equal(b.told, out.Addrs) {
			errs = append(errs, fmt.Errorf("ADD %s was told %v, but it holds %v", k, out.Addrs, b.told))
		}
		for other, x := range o.beliefs {
			if other == k || !x.certain() || x.ending {
				continue
			}
			for _, a := range out.Addrs {
				if slices.Contains(x.told, a) {
					errs = append(errs, fmt.Errorf("ADD %s was told %s, which %s holds", k, a, other))
				}
			}
		}
		b.none, b.any, b.told = false, false, out.Addrs
		return errors.Join(errs...)
	}
	return nil
}

func endCheck(k Key, b *belief, out Outcome) error {
	switch {
	case out.Fate == Answered && b.none && b.told == nil && !b.any:
		return fmt.Errorf("CHECK %s succeeded, but it holds nothing", k)
	case out.Fate == Refused && b.certain():
		return fmt.Errorf("CHECK %s was refused, but it holds %v", k, b.told)
	}
	return nil
}

// died is called when the agent is dead: nothing that was abandoned is done any more.
func (o *Oracle) died() {
	for _, b := range o.beliefs {
		b.ghosts = false
	}
}

// Check is called with all leases of pods while no request is under
// way and none that was abandoned can still be done. It says what contradicts
// what clients were told; after that, what the book says is what is known.
// waiting is true for attachments whose DEL waits on disk: those may still be
// in the book (nil: none).
func (o *Oracle) Check(book Book, waiting func(Key) bool) error {
	var errs []error
	holder := map[netip.Addr]Key{}
	held := map[Key][]netip.Addr{}
	for _, h := range book {
		if other, twice := holder[h.Addr]; twice {
			errs = append(errs, fmt.Errorf("%s is held by %s and by %s", h.Addr, other, h.Key))
		}
		holder[h.Addr] = h.Key
		held[h.Key] = append(held[h.Key], h.Addr)
		if o.beliefs[h.Key] == nil {
			errs = append(errs, fmt.Errorf("%s holds %s and never asked for it", h.Key, h.Addr))
		}
	}
	for k, b := range o.beliefs {
		found := held[k]
		slices.SortFunc(found, netip.Addr.Compare)
		if waiting != nil && waiting(k) {
			continue
		}
		if err := b.check(k, found); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *belief) check(k Key, found []netip.Addr) error {
	before := *b
	*b = belief{none: found == nil, told: found}
	switch {
	case found == nil && before.none, found != nil && before.any:
		return nil
	case found != nil && before.told != nil && slices.Equal(found, before.told):
		return nil
	case found == nil:
		return fmt.Errorf("%s holds nothing, it was told %v", k, before.told)
	case before.told == nil:
		return fmt.Errorf("%s holds %v, but it was given back", k, found)
	}
	return fmt.Errorf("%s holds %v, it was told %v", k, found, before.told)
}
