// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package yamldoc reads a file of one YAML document into a struct and collects all
// that is wrong with it. It finds what decoders pass over: a key that is given
// twice, a second document, and text behind the first one. Each Problem names the
// field, the value and what would be right. A Collector takes the problems that the
// caller finds in the values as well.
//
// A Decoder belongs to its caller and is for one file. The package keeps no state.
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

// read returns the content of the file's document, as package json has it with
// numbers as json.Number, nil for an empty one. ok is false if it cannot be read.
func read(file []byte) (content any, ok bool, found Problems) {
	add := func(rule Rule, text string) { found = append(found, Problem{Rule: rule, Field: wholeFile, Text: text}) }
	syntax := func(err error) { add(RuleSyntax, "is not valid YAML: "+strings.TrimPrefix(err.Error(), "yaml: ")) }
	converted, err := yaml.YAMLToJSONStrict(file)
	if err != nil {
		// Strict refuses duplicate keys. Reading on finds the other problems.
		lax, laxErr := yaml.YAMLToJSON(file)
		if laxErr != nil {
			syntax(laxErr)
			return nil, false, found
		}
		found, converted = duplicates(err), lax
	}
	if hasSecondDocument(file) {
		add(RuleDocument, "has more than one YAML document: remove the \"---\" between them, or all but one")
	} else if err := checkRest(file); err != nil {
		syntax(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(converted))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		syntax(err)
		return nil, false, found
	}
	return content, true, found
}

// duplicates returns the keys that the strict decoder has found twice.
func duplicates(err error) (found Problems) {
	for line := range strings.Lines(err.Error()) {
		var key string
		var number int
		if _, err := fmt.Sscanf(
			strings.TrimSpace(line),
			"line %d: key %q already set in map",
			&number,
			&key,
		); err == nil {
			found = append(found, Problem{
				Rule:  RuleDuplicateKey,
				Field: printable(key),
				Text:  fmt.Sprintf("is given twice, the second time in line %d: keep one", number),
			})
		}
	}
	if len(found) == 0 {
		found = Problems{{Rule: RuleDuplicateKey, Field: wholeFile, Text: "has a key twice: " + err.Error()}}
	}
	return found
}

// checkRest returns the first error behind the first document, which other decoders
// do not read: for example "{}" with a key in the next line.
func checkRest(file []byte) error {
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

// hasSecondDocument reports whether a second document begins. A decoder returns one
// for an empty rest too, so this looks at the lines.
func hasSecondDocument(file []byte) bool {
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
