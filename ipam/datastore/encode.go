// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
)

// checksumField begins the last field of the file: a checksum over all bytes before
// it. Other readers ignore it. A file of another program has none.
const checksumField = `,"checksum":"`

// encodeFile appends the text of a checkpoint file to b.
func encodeFile(b []byte, d *CheckpointData) ([]byte, error) {
	began := len(b)
	b = append(slices.Grow(b, 128+224*(len(d.Allocations)+len(d.Cooling))), `{"version":`...)
	b, err := appendText(b, d.Version)
	b, errs := appendEntries(append(b, `,"allocations":[`...), d.Allocations)
	if b = append(b, ']'); len(d.Cooling) > 0 {
		var more error
		b, more = appendEntries(append(b, `,"cooling":[`...), d.Cooling)
		b, errs = append(b, ']'), errors.Join(errs, more)
	}
	sum := crc32.Checksum(b[began:], crc32.MakeTable(crc32.Castagnoli))
	return fmt.Appendf(append(b, checksumField...), "%08x\"}\n", sum), errors.Join(err, errs)
}

func appendEntries(b []byte, all []CheckpointEntry) ([]byte, error) {
	var errs []error
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendEntry(b, &all[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return b, errors.Join(errs...)
}

// appendEntry appends what encoding/json would, which a test compares. Encoding the
// entries is most of the work of writing a file.
func appendEntry(b []byte, e *CheckpointEntry) ([]byte, error) {
	f := fields{b: append(b, '{'), first: true}
	f.text("networkName", e.NetworkName)
	f.text("containerID", e.ContainerID)
	f.text("ifName", e.IfName)
	f.optional("ipv4", e.IPv4)
	f.optional("ipv6", e.IPv6)
	if e.AllocationTimestamp != 0 {
		f.number("allocationTimestamp", e.AllocationTimestamp)
	}
	if m := &e.Metadata; *m != (IPAMMetadata{}) {
		f.name("metadata")
		f.b, f.first = append(f.b, '{'), true
		f.optional("k8sPodNamespace", m.K8SPodNamespace)
		f.optional("k8sPodName", m.K8SPodName)
		if m.InterfacesCount != 0 {
			f.number("interfacesCount", int64(m.InterfacesCount))
		}
		f.b, f.first = append(f.b, '}'), false
	}
	f.optional("bootID", e.BootID)
	if e.CoolingSince != nil {
		f.number("coolingSince", int64(*e.CoolingSince))
	}
	return append(f.b, '}'), f.err
}

// fields appends the fields of a JSON object to b.
type fields struct {
	b     []byte
	first bool
	err   error
}

func (f *fields) name(name string) {
	if !f.first {
		f.b = append(f.b, ',')
	}
	f.first = false
	f.b = append(append(append(f.b, '"'), name...), '"', ':')
}

func (f *fields) text(name, value string) {
	f.name(name)
	b, err := appendText(f.b, value)
	f.b, f.err = b, errors.Join(f.err, err)
}

func (f *fields) optional(name, value string) {
	if value != "" {
		f.text(name, value)
	}
}

func (f *fields) number(name string, value int64) {
	f.name(name)
	f.b = strconv.AppendInt(f.b, value, 10)
}

// appendText appends a JSON string. Most strings need no escape.
func appendText(b []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, err := json.Marshal(s)
			return append(b, text...), err
		}
	}
	return append(append(append(b, '"'), s...), '"'), nil
}

// decodeFile decodes a file into into. The file must be one JSON object that
// matches its checksum, if it has one. After an error into is unchanged.
func decodeFile(text []byte, into any) error {
	var seal struct {
		Checksum string `json:"checksum"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&seal); err != nil {
		return fmt.Errorf("it is not a JSON object, or it is truncated: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("it has data after the JSON object, at byte %d", d.InputOffset())
	}
	if seal.Checksum != "" {
		body := text[:max(bytes.LastIndex(text, []byte(checksumField)), 0)]
		if sum := fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))); sum != seal.Checksum {
			return fmt.Errorf(
				"its checksum is %q, want %q: it is damaged or was edited; an edited file is read without a checksum",
				seal.Checksum,
				sum,
			)
		}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("it is not a checkpoint: %w", err)
	}
	return nil
}
