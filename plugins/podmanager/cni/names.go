// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxName   = 253  // bytes of a name: the limit of Kubernetes' own names
	maxPath   = 4095 // bytes of a path: PATH_MAX of the kernel, without the final zero
	maxPart   = 255  // bytes of a name in a path: NAME_MAX
	maxIfName = 15   // bytes of an interface name: IFNAMSIZ of the kernel, without the final zero

	nameRule = "it must begin with a letter or a digit, letters, digits, '_', '.' and '-' may follow, " +
		"and 253 bytes are the most"
)

// CheckNames returns an error for the first invalid name of an ADD, or nil. podmanager calls
// it too, because a program may make a Request without NewRequest. Names of other requests are
// not checked: an attachment under a name that is refused now can still be deleted.
func (r Request) CheckNames() *Error {
	if !validName(r.Network) || len(r.Network) > maxName {
		return Errorf(CodeInvalidConfig, "network name %.300q is invalid: %s", r.Network, nameRule)
	}
	for _, n := range []struct {
		name, value string
		need        bool
	}{
		{"containerID (CNI_CONTAINERID)", r.ContainerID, true},
		{"pod namespace (K8S_POD_NAMESPACE in CNI_ARGS)", r.Pod.Namespace, false},
		{"pod name (K8S_POD_NAME in CNI_ARGS)", r.Pod.Name, false},
		{"pod UID (K8S_POD_UID in CNI_ARGS)", r.Pod.UID, false},
	} {
		if (n.need || n.value != "") && (!validName(n.value) || len(n.value) > maxName) {
			return Errorf(CodeEnvironment, "%s %.300q is invalid: %s", n.name, n.value, nameRule)
		}
	}
	if why := badIfName(r.IfName); why != "" {
		return Errorf(CodeEnvironment, "ifName (CNI_IFNAME) %.300q is invalid: %s", r.IfName, why)
	}
	if r.Main && r.Netns == "" {
		return Errorf(CodeEnvironment, "netns (CNI_NETNS) is empty: the agent makes the pod's interface there")
	}
	if why := badPath(r.Netns); why != "" {
		return Errorf(CodeEnvironment, "netns (CNI_NETNS) %.300q is invalid: %s", r.Netns, why)
	}
	return nil
}

// CheckNames returns an error if the namespace or the name of the pod is missing or invalid.
// A runtime may leave out both; a caller that names a pod may not.
func (p Pod) CheckNames() error {
	for _, n := range []struct{ name, value string }{{"namespace", p.Namespace}, {"name", p.Name}} {
		if !validName(n.value) || len(n.value) > maxName {
			return fmt.Errorf("pod %s %.300q is invalid: %s", n.name, n.value, nameRule)
		}
	}
	return nil
}

// badPath returns the reason why no file can have a path, or why a reader of UTF-8 would
// look for another one, "" if there is none. Such a path would make the kernel's evidence
// incomplete for as long as its lease exists.
func badPath(s string) string {
	switch {
	case len(s) > maxPath:
		return "4095 bytes are the most"
	case slices.ContainsFunc(strings.Split(s, "/"), func(part string) bool { return len(part) > maxPart }):
		return "255 bytes are the most between two '/'"
	case strings.ContainsRune(s, utf8.RuneError):
		return "it must be UTF-8"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "control characters are not allowed"
	}
	return ""
}

// badIfName returns the reason why the kernel, or a reader of UTF-8, does not accept the
// name of an interface, "" if they do.
func badIfName(s string) string {
	switch {
	case s == "" || s == "." || s == "..":
		return `it must not be empty, "." or ".."`
	case len(s) > maxIfName:
		return "15 bytes are the most"
	case strings.ContainsRune(s, utf8.RuneError): // also U+FFFD itself, which decoders put in the place of bad bytes
		return "it must be UTF-8"
	case strings.ContainsAny(s, "/:"),
		strings.ContainsFunc(s, unicode.IsSpace),
		strings.ContainsFunc(s, unicode.IsControl):
		return "'/', ':', white space and control characters are not allowed"
	case bytes.IndexByte([]byte(s), 0xa0) >= 0: // the kernel checks single bytes
		return "the kernel takes byte 0xa0 in it for white space"
	}
	return ""
}

// parseMAC returns a MAC address in lower case with colons. It accepts hyphens too.
func parseMAC(s string) (string, *Error) {
	mac := strings.ToLower(strings.ReplaceAll(s, "-", ":"))
	parts := strings.Split(mac, ":")
	first, zero := 0, true
	valid := len(parts) == 6
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		valid = valid && err == nil && len(part) == 2
		zero = zero && n == 0
		if i == 0 {
			first = int(n)
		}
	}
	if !valid || zero || first&1 != 0 {
		return "", Errorf(CodeInvalidConfig,
			"requested MAC address %.60q is not one that an interface can have, such as 02:00:00:00:00:01", s)
	}
	return mac, nil
}
