// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package sbom lists what programs are made of, as an SPDX 2.3 document in JSON: the
// programs with their checksums, the Go modules that the linker has recorded in them, with
// version and h1 checksum, and Go's standard library. The same programs give the same bytes.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// Document describes the document that Write makes.
type Document struct {
	Name     string // of the archive
	Version  string // of the programs
	Time     time.Time
	Programs []string // paths on this machine
	Debian   []Debian // packages whose files are shipped
}

// Debian is a package of Debian whose files are shipped beside the programs.
type Debian struct{ Name, Version string }

const (
	home        = "https://github.com/cadastre/cadastre"
	module      = "github.com/cadastre/cadastre"
	unknown     = "NOASSERTION"
	ownLicense  = "Apache-2.0"
	goLicense   = "BSD-3-Clause"
	modulePurl  = "pkg:golang/%s@%s"
	stdlibPurl  = "pkg:golang/std@%s"
	debianPurl  = "pkg:deb/debian/%s@%s"
	generatedBy = "cadastre-release"
)

// list holds the document that is being made.
type list struct {
	*spdx.Document
	known map[string]bool // IDs of packages
}

// Marshal returns the document.
func (d Document) Marshal() ([]byte, error) {
	l := list{Document: &spdx.Document{
		SPDXVersion:    spdx.Version,
		DataLicense:    spdx.DataLicense,
		SPDXIdentifier: "DOCUMENT",
		DocumentName:   d.Name,
		CreationInfo: &spdx.CreationInfo{
			Created:  d.Time.UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: generatedBy + "-" + d.Version}},
		},
	}, known: map[string]bool{}}
	all := sha256.New()
	for _, path := range d.Programs {
		sum, err := l.program(path, d)
		if err != nil {
			return nil, fmt.Errorf("list the parts of %s: %w", path, err)
		}
		all.Write([]byte(sum))
	}
	for _, p := range d.Debian {
		l.add(&spdx.Package{
			PackageName:               p.Name,
			PackageVersion:            p.Version,
			PackageLicenseDeclared:    unknown,
			PackageExternalReferences: purl(fmt.Sprintf(debianPurl, p.Name, p.Version)),
		}, "Debian-"+p.Name)
		l.relate("DOCUMENT", common.TypeRelationshipDescribe, id("Debian-"+p.Name))
	}
	l.DocumentNamespace = home + "/spdx/" + d.Name + "-" + hex.EncodeToString(all.Sum(nil))
	var text bytes.Buffer
	err := spdxjson.Write(l.Document, &text, spdxjson.Indent("  "), spdxjson.EscapeHTML(false))
	return text.Bytes(), err
}

// program adds a program and what it is made of, and returns its checksum.
func (l list) program(path string, d Document) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(data)
	sum, name := hex.EncodeToString(digest[:]), filepath.Base(path)
	own := l.add(&spdx.Package{
		PackageName:            name,
		PackageVersion:         d.Version,
		PackageFileName:        name,
		PackageLicenseDeclared: ownLicense,
		PackageChecksums:       []common.Checksum{{Algorithm: common.SHA256, Value: sum}},
		PrimaryPackagePurpose:  "APPLICATION",
	}, "Program-"+name)
	l.relate("DOCUMENT", common.TypeRelationshipDescribe, own)
	l.relate(own, common.TypeRelationshipDependsOn, l.add(&spdx.Package{
		PackageName:               "std",
		PackageVersion:            info.GoVersion,
		PackageLicenseDeclared:    goLicense,
		PackageExternalReferences: purl(fmt.Sprintf(stdlibPurl, strings.TrimPrefix(info.GoVersion, "go"))),
	}, "Go-std-"+info.GoVersion))
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Replace != nil && !strings.HasPrefix(m.Replace.Path, ".") { // otherwise a folder of this project
			m = m.Replace
		}
		l.relate(own, common.TypeRelationshipDependsOn, l.module(m, d.Version))
	}
	return sum, nil
}

// module adds a Go module. Those of this project have the version of the release.
func (l list) module(m *debug.Module, version string) common.ElementID {
	license := unknown
	if m.Path == module || strings.HasPrefix(m.Path, module+"/") {
		license = ownLicense
	} else {
		version = m.Version
	}
	p := &spdx.Package{
		PackageName:               m.Path,
		PackageVersion:            version,
		PackageLicenseDeclared:    license,
		PackageExternalReferences: purl(fmt.Sprintf(modulePurl, m.Path, version)),
		PrimaryPackagePurpose:     "LIBRARY",
	}
	if m.Sum != "" {
		p.PackageSourceInfo = "go.sum: " + m.Sum
	}
	return l.add(p, "Module-"+m.Path+"-"+version)
}

// add adds a package once, and returns its ID.
func (l list) add(p *spdx.Package, name string) common.ElementID {
	p.PackageSPDXIdentifier = id(name)
	if !l.known[name] {
		l.known[name] = true
		p.PackageDownloadLocation, p.PackageLicenseConcluded, p.PackageCopyrightText = unknown, unknown, unknown
		p.IsFilesAnalyzedTagPresent = true
		l.Packages = append(l.Packages, p)
	}
	return p.PackageSPDXIdentifier
}

func (l list) relate(a common.ElementID, kind string, b common.ElementID) {
	r := &spdx.Relationship{
		RefA:         common.MakeDocElementID("", string(a)),
		RefB:         common.MakeDocElementID("", string(b)),
		Relationship: kind,
	}
	if !slices.ContainsFunc(l.Relationships, func(have *spdx.Relationship) bool { return *have == *r }) {
		l.Relationships = append(l.Relationships, r)
	}
}

// id returns a name in the characters of SPDX's identifiers.
func id(name string) common.ElementID {
	return common.ElementID(regexp.MustCompile(`[^A-Za-z0-9.-]+`).ReplaceAllString(name, "-"))
}

func purl(locator string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager,
		RefType:  common.TypePackageManagerPURL,
		Locator:  locator,
	}}
}
