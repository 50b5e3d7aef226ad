// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// aligned returns the next multiple of 4.
func aligned(n int) int { return (n + 3) &^ 3 }

// Message builds the body of a request.
type Message []byte

// Attr appends an attribute.
func (m Message) Attr(kind uint16, value []byte) Message {
	m = binary.NativeEndian.AppendUint16(m, uint16(unix.SizeofNlAttr+len(value)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, value...)
	return append(m, make([]byte, aligned(len(value))-len(value))...)
}

// U32 appends an attribute with a number of 32 bits.
func (m Message) U32(kind uint16, value uint32) Message {
	return m.Attr(kind, binary.NativeEndian.AppendUint32(nil, value))
}

// U8 appends an attribute with a number of 8 bits.
func (m Message) U8(kind uint16, value uint8) Message { return m.Attr(kind, []byte{value}) }

// Text appends an attribute with a text that ends with a zero byte.
func (m Message) Text(kind uint16, value string) Message {
	return m.Attr(kind, append([]byte(value), 0))
}

// Nest appends an attribute that contains others.
func (m Message) Nest(kind uint16, inner Message) Message {
	return m.Attr(kind|unix.NLA_F_NESTED, inner)
}

// Attributes calls each for all attributes of a message.
func Attributes(b []byte, each func(kind uint16, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return
		}
		const mask = 0x3fff // without the flags "nested" and "network byte order"
		each(binary.NativeEndian.Uint16(b[2:])&mask, b[unix.SizeofNlAttr:size])
		b = b[min(aligned(size), len(b)):]
	}
}

// Number returns the value of an attribute of 32 bits, 0 if it is shorter.
func Number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// Text returns the text of an attribute.
func Text(value []byte) string {
	for i, c := range value {
		if c == 0 {
			return string(value[:i])
		}
	}
	return string(value)
}
