// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package yamldoc reads a file that is to be one YAML document, as strictly as
// people who edit such files deserve: keys that are there twice, a second
// document, and whatever follows the first one are found, and not passed over
// as decoders do. It keeps nothing and may be called by anybody.
//
// Read finds all that is wrong, and returns what can be read all the same, so
// that the caller finds what is wrong with that in the same pass.
//
// Example:
//
//	content, ok, faults := yamldoc.Read([]byte("a: 1\na: 2"))
//	// faults[0]: Twice, key "a", line 2
package yamldoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Kind is a kind of fault.
type Kind int

// The kinds.
const (
	Syntax  Kind = iota // Text says why it is not valid YAML
	Several             // there is more than one document
	Twice               // Key is there twice, the second time in Line; where Key is "", Text says it
)

// Fault is one thing that is wrong.
type Fault struct {
	Kind Kind
	Key  string
	Line int
	Text string
}

// Read is the content of the file's document, as package json has it with
// numbers as json.Number, nil for an empty one; ok is false where it cannot be
// read. The faults are all that is wrong with the file.
func Read(file []byte) (content any, ok bool, faults []Fault) {
	converted, err := yaml.YAMLToJSONStrict(file)
	if err != nil {
		// Strict refuses duplicate keys. Reading on finds the other problems.
		lax, laxErr := yaml.YAMLToJSON(file)
		if laxErr != nil {
			return nil, false, []Fault{{Kind: Syntax, Text: plain(laxErr)}}
		}
		faults, converted = twice(err), lax
	}
	if several(file) {
		faults = append(faults, Fault{Kind: Several})
	} else if err := behind(file); err != nil {
		faults = append(faults, Fault{Kind: Syntax, Text: plain(err)})
	}
	decoder := json.NewDecoder(bytes.NewReader(converted))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return nil, false, append(faults, Fault{Kind: Syntax, Text: err.Error()})
	}
	return content, true, faults
}

func plain(err error) string { return strings.TrimPrefix(err.Error(), "yaml: ") }

// twice are the keys that the strict decoder has found twice.
func twice(err error) (faults []Fault) {
	for line := range strings.Lines(err.Error()) {
		f := Fault{Kind: Twice}
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "line %d: key %q already set in map", &f.Line, &f.Key); err == nil {
			faults = append(faults, f)
		}
	}
	if len(faults) == 0 {
		faults = []Fault{{Kind: Twice, Text: err.Error()}}
	}
	return faults
}

// behind is what is wrong with what follows the first document, which other
// decoders do not look at: "{}" and a key in the next line, for one.
func behind(file []byte) error {
	decoder := yamlv3.NewDecoder(bytes.NewReader(file))
	for {
		var document yamlv3.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// several finds a second document. Decoders make one of an empty rest, too.
func several(file []byte) bool {
	content, ended := false, false
	for line := range bytes.Lines(bytes.TrimPrefix(file, []byte("\ufeff"))) {
		trimmed := bytes.TrimSpace(line)
		fields := bytes.Fields(line)
		switch {
		case len(trimmed) == 0 || trimmed[0] == '#' || !content && line[0] == '%':
		case bytes.HasPrefix(line, []byte("---")) && string(fields[0]) == "---":
			if content || ended {
				return true
			}
			content = len(fields) > 1 && fields[1][0] != '#'
		case bytes.HasPrefix(line, []byte("...")) && string(fields[0]) == "...":
			ended = true
		case ended:
			return true
		default:
			content = true
		}
	}
	return false
}
