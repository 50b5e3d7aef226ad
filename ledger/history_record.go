// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cadastre/cadastre/kvdb"
)

// HistoryPrefix begins the keys of entries of the history. The number of the entry
// follows, 8 bytes big endian.
const HistoryPrefix = "H"

func historyKey(number uint64) string {
	var b [len(HistoryPrefix) + 8]byte
	copy(b[:], HistoryPrefix)
	binary.BigEndian.PutUint64(b[len(HistoryPrefix):], number)
	return string(b[:])
}

// numberOf returns the number in a key of the history.
func numberOf(key string) (uint64, error) {
	rest, ok := strings.CutPrefix(key, HistoryPrefix)
	if !ok || len(rest) != 8 {
		return 0, fmt.Errorf("history: key %q: want %q and 8 bytes", key, HistoryPrefix)
	}
	return binary.BigEndian.Uint64([]byte(rest)), nil
}

// Fields of an entry, which is a message of Protocol Buffers. It is encoded here,
// without reflection, since every claim writes one. Fields are added, never renumbered;
// a reader skips those that it does not know.
const (
	histTime protowire.Number = iota + 1 // Unix time in ns
	histAction
	histPool
	histAddress // 4 or 16 bytes; of a block its first address
	histBits    // length of the block + 1; 0: unknown
	histPurpose
	histNetwork
	histContainer
	histIfName
	histNamespace
	histPodName
	histPodUID
	histNetNS
	histGeneration
	histHeld  // ns before histTime, of an end
	histAfter // ns
	histEvent
	histEventName
	histReason
)

// appendHistory appends the record of e.
func appendHistory(b []byte, e *HistoryEntry) []byte {
	number := func(n protowire.Number, v uint64) {
		if v != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
		}
	}
	text := func(n protowire.Number, s string) {
		if s != "" {
			b = protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
		}
	}
	number(histTime, uint64(e.Time.UnixNano()))
	number(histAction, uint64(e.Action))
	text(histPool, e.Pool)
	a := e.Addr
	if !a.IsValid() {
		a = e.Block.Addr()
	}
	if a.IsValid() {
		var room [16]byte
		b = protowire.AppendTag(b, histAddress, protowire.BytesType)
		if a.Is4() {
			four := a.As4()
			b = protowire.AppendBytes(b, append(room[:0], four[:]...))
		} else {
			room = a.As16()
			b = protowire.AppendBytes(b, room[:])
		}
	}
	number(histBits, uint64(e.Block.Bits()+1))
	number(histPurpose, uint64(e.Purpose))
	text(histNetwork, e.Key.Network)
	text(histContainer, e.Key.ContainerID)
	text(histIfName, e.Key.IfName)
	text(histNamespace, e.Pod.Namespace)
	text(histPodName, e.Pod.Name)
	text(histPodUID, e.Pod.UID)
	text(histNetNS, e.NetNS)
	number(histGeneration, e.Generation)
	if !e.Since.IsZero() {
		number(histHeld, uint64(max(0, e.Time.Sub(e.Since)))+1)
	}
	number(histAfter, uint64(e.After))
	if e.EventName != "" {
		number(histEvent, e.Event)
		text(histEventName, e.EventName)
	}
	text(histReason, e.Reason)
	return b
}

// decodeHistory returns the entry in a record.
func decodeHistory(r kvdb.KeyValue) (e HistoryEntry, err error) {
	if e.Number, err = numberOf(r.Key); err != nil {
		return e, err
	}
	var a netip.Addr
	var bits, held uint64
	for b := r.Value; len(b) > 0; {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return e, fmt.Errorf("history: entry %d: %w", e.Number, protowire.ParseError(size))
		}
		b = b[size:]
		switch kind {
		case protowire.VarintType:
			var v uint64
			if v, size = protowire.ConsumeVarint(b); size >= 0 {
				e.setNumber(n, v, &bits, &held)
			}
		case protowire.BytesType:
			var v []byte
			if v, size = protowire.ConsumeBytes(b); size >= 0 {
				if n == histAddress {
					a, _ = netip.AddrFromSlice(v)
				}
				e.setText(n, v)
			}
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return e, fmt.Errorf("history: field %d of entry %d: %w", n, e.Number, protowire.ParseError(size))
		}
		b = b[size:]
	}
	if bits > 0 {
		e.Block, _ = a.Prefix(int(bits) - 1)
	}
	if !e.Action.OfBlock() {
		e.Addr = a
	}
	if held > 0 {
		e.Since = e.Time.Add(-time.Duration(held - 1))
	}
	return e, nil
}

func (e *HistoryEntry) setNumber(n protowire.Number, v uint64, bits, held *uint64) {
	switch n {
	case histTime:
		e.Time = time.Unix(0, int64(v)).UTC()
	case histAction:
		e.Action = Action(v)
	case histBits:
		*bits = v
	case histPurpose:
		e.Purpose = Purpose(v)
	case histGeneration:
		e.Generation = v
	case histHeld:
		*held = v
	case histAfter:
		e.After = time.Duration(v)
	case histEvent:
		e.Event = v
	}
}

func (e *HistoryEntry) setText(n protowire.Number, v []byte) {
	switch n {
	case histPool:
		e.Pool = string(v)
	case histNetwork:
		e.Key.Network = string(v)
	case histContainer:
		e.Key.ContainerID = string(v)
	case histIfName:
		e.Key.IfName = string(v)
	case histNamespace:
		e.Pod.Namespace = string(v)
	case histPodName:
		e.Pod.Name = string(v)
	case histPodUID:
		e.Pod.UID = string(v)
	case histNetNS:
		e.NetNS = string(v)
	case histEventName:
		e.EventName = string(v)
	case histReason:
		e.Reason = string(v)
	}
}
