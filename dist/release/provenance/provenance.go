// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package provenance states how the files of a release were made: an in-toto statement with
// SLSA's provenance predicate, both of version 1. The statement is not signed; a hosted
// builder signs it.
package provenance

import (
	"bytes"
	"encoding/json"
	"fmt"

	provenancev1 "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intotov1 "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cadastre/cadastre/dist/release/build"
)

// PredicateType is the type of SLSA's provenance.
const PredicateType = "https://slsa.dev/provenance/v1"

const (
	home = "https://github.com/cadastre/cadastre"
	// buildType is the page that says how "make release" builds.
	buildType = home + "/blob/main/docs/releases.md"
)

// File is a file of a release.
type File struct {
	Name   string
	SHA256 string // in hexadecimal
}

// Build describes the run that made the files.
type Build struct {
	Source  build.Source
	Arches  []string
	Groups  []string
	Builder string // the address of the builder
	Go      string // the version of Go
}

// Statement returns the statement about the files as JSON. The same arguments give the same
// bytes: it has no time of its own.
func Statement(b Build, files []File) ([]byte, error) {
	statement := &intotov1.Statement{Type: intotov1.StatementTypeUri, PredicateType: PredicateType}
	for _, f := range files {
		digest := map[string]string{"sha256": f.SHA256}
		statement.Subject = append(statement.Subject, &intotov1.ResourceDescriptor{Name: f.Name, Digest: digest})
	}
	predicate, err := b.predicate()
	if err == nil {
		err = predicate.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("state the provenance: %w", err)
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return nil, fmt.Errorf("state the provenance: %w", err)
	}
	statement.Predicate = &structpb.Struct{}
	if err := protojson.Unmarshal(text, statement.Predicate); err != nil {
		return nil, fmt.Errorf("state the provenance: %w", err)
	}
	if err := statement.Validate(); err != nil {
		return nil, fmt.Errorf("state the provenance: %w", err)
	}
	if text, err = protojson.Marshal(statement); err != nil {
		return nil, fmt.Errorf("state the provenance: %w", err)
	}
	var out bytes.Buffer // protojson adds spaces by chance
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func (b Build) predicate() (*provenancev1.Provenance, error) {
	parameters, err := structpb.NewStruct(map[string]any{
		"version":       b.Source.Version,
		"architectures": list(b.Arches),
		"groups":        list(b.Groups),
		"epoch":         float64(b.Source.Time.Unix()),
	})
	if err != nil {
		return nil, err
	}
	source := &intotov1.ResourceDescriptor{Uri: "git+" + home}
	if b.Source.Commit != "" {
		source.Uri += "@" + b.Source.Commit
		source.Digest = map[string]string{"gitCommit": b.Source.Commit}
	}
	if b.Source.Modified {
		if source.Annotations, err = structpb.NewStruct(map[string]any{"modified": true}); err != nil {
			return nil, err
		}
	}
	return &provenancev1.Provenance{
		BuildDefinition: &provenancev1.BuildDefinition{
			BuildType:          buildType,
			ExternalParameters: parameters,
			ResolvedDependencies: []*intotov1.ResourceDescriptor{
				source,
				{Name: "go", Uri: "pkg:generic/go@" + b.Go},
			},
		},
		RunDetails: &provenancev1.RunDetails{Builder: &provenancev1.Builder{Id: b.Builder}},
	}, nil
}

func list(words []string) []any {
	all := []any{}
	for _, w := range words {
		all = append(all, w)
	}
	return all
}
