// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"strings"
)

// Invocation holds the environment in which a runtime starts the executable.
type Invocation struct {
	Command     string // ADD, DEL, CHECK, GC, STATUS, VERSION
	ContainerID string
	Netns       string
	IfName      string
	Args        string // "K=V;K=V"
	Path        string
}

// FromEnv reads an Invocation and checks that the variables of its command are set.
func FromEnv(getenv func(string) string) (Invocation, *Error) {
	inv := Invocation{
		Command:     getenv("CNI_COMMAND"),
		ContainerID: getenv("CNI_CONTAINERID"),
		Netns:       getenv("CNI_NETNS"),
		IfName:      getenv("CNI_IFNAME"),
		Args:        getenv("CNI_ARGS"),
		Path:        getenv("CNI_PATH"),
	}
	attachment, netns := false, false
	switch inv.Command {
	case "ADD", "CHECK":
		attachment, netns = true, true
	case "DEL":
		attachment = true
	case "GC", "STATUS":
	case "VERSION":
		return inv, nil
	case "":
		return inv, Errorf(CodeEnvironment, "required env variables [CNI_COMMAND] missing")
	default:
		return inv, Errorf(
			CodeEnvironment,
			"unknown CNI_COMMAND: %s (ADD, DEL, CHECK, GC, STATUS and VERSION are known)",
			inv.Command,
		)
	}
	var missing []string
	for _, v := range []struct {
		name, value string
		need        bool
	}{
		{"CNI_CONTAINERID", inv.ContainerID, attachment},
		{"CNI_NETNS", inv.Netns, netns},
		{"CNI_IFNAME", inv.IfName, attachment},
		{"CNI_PATH", inv.Path, true},
	} {
		if v.need && v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) > 0 {
		return inv, Errorf(CodeEnvironment, "required env variables [%s] missing", strings.Join(missing, ","))
	}
	if !attachment {
		return inv, nil
	}
	if !validName(inv.ContainerID) {
		return inv, Errorf(
			CodeEnvironment,
			"CNI_CONTAINERID %q is invalid: it must begin with a letter or a digit, and letters, digits, '_', '.' and '-' may follow",
			inv.ContainerID,
		)
	}
	return inv, checkIfName(inv.IfName)
}

// validName applies the specification's rule for container IDs and network names.
func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

func checkIfName(s string) *Error {
	switch {
	case len(s) > 15:
		return Errorf(CodeEnvironment, "CNI_IFNAME %q is invalid: at most 15 characters are allowed", s)
	case s == "." || s == "..":
		return Errorf(CodeEnvironment, "CNI_IFNAME %q is invalid: it must not be \".\" or \"..\"", s)
	case strings.ContainsAny(s, "/: \t\n\v\f\r\u0085\u00a0"):
		return Errorf(CodeEnvironment, "CNI_IFNAME %q is invalid: '/', ':' and white space are not allowed", s)
	}
	return nil
}

// Pod identifies the pod of an attachment, from the CNI_ARGS of Kubernetes' runtimes.
type Pod struct {
	Namespace string
	Name      string
	UID       string
}

// Args holds the keys of CNI_ARGS that the plugin reads.
type Args struct {
	Pod Pod
	IP  string // requested addresses, separated by commas
	MAC string // requested MAC address
}

// ParseArgs reads CNI_ARGS. It ignores unknown keys, with and without IgnoreUnknown.
func ParseArgs(args string) (a Args, err *Error) {
	for kv := range strings.SplitSeq(args, ";") {
		if kv == "" {
			continue
		}
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return a, Errorf(CodeEnvironment, "CNI_ARGS: %q is not a KEY=VALUE pair", kv)
		}
		switch k {
		case "K8S_POD_NAMESPACE":
			a.Pod.Namespace = v
		case "K8S_POD_NAME":
			a.Pod.Name = v
		case "K8S_POD_UID":
			a.Pod.UID = v
		case "IP":
			a.IP = v
		case "MAC":
			a.MAC = v
		}
	}
	return a, nil
}
