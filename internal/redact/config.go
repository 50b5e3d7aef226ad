// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Config holds a cleaned contiv.conf.
type Config struct {
	YAML    []byte // without comments; a removed value is Removed
	Values  int    // number of removed values
	Unknown int    // number of keys that were removed with all below them
	// Files lists the values that may name files. Their content has to be hidden, too.
	Files []string
}

// CleanConfig returns a contiv.conf without what is not known to be harmless. A value
// stays if its key is in the allow list and it has the form of this key's values.
// What was removed is hidden in texts. A file that is not YAML is removed as a whole.
func CleanConfig(text []byte, texts *Texts) (Config, error) {
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" \t\r\n,[]{}\"'", r) }) {
			if word = strings.TrimSuffix(word, ":"); !harmless(word) {
				texts.Hide(word)
			}
		}
		return Config{}, errors.New("the file is not a YAML object") // the parser's error quotes the file
	}
	c := cleaner{forms: forms(), texts: texts}
	out, err := yaml.Marshal(c.clean("", all))
	if err != nil {
		return Config{}, err
	}
	c.YAML = out
	return c.Config, nil
}

// harmless reports whether a word of a file that cannot be parsed is a key or has the form of
// a value that stays.
func harmless(word string) bool {
	for path, keeps := range forms() {
		for key := range strings.SplitSeq(strings.ReplaceAll(path, "[]", ""), ".") {
			if strings.EqualFold(key, word) {
				return true
			}
		}
		if _, ok := keeps(word); ok {
			return true
		}
	}
	return false
}

// cleaner removes values of one file.
type cleaner struct {
	Config
	forms map[string]form
	texts *Texts
}

// form returns a value as it may be shown, if it has a certain form.
type form func(value any) (shown any, ok bool)

func (c *cleaner) clean(path string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		return c.cleanMap(path, v)
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = c.clean(path+"[]", x)
		}
		return out
	case nil:
		return nil
	}
	if value == "" {
		return ""
	}
	if keeps := c.forms[path]; keeps != nil {
		if shown, ok := keeps(value); ok {
			if shown != value { // a part of it was removed
				c.hide(value)
			}
			return shown
		}
	}
	c.Values++
	c.hide(value)
	return Removed
}

func (c *cleaner) cleanMap(path string, all map[string]any) map[string]any {
	out := map[string]any{}
	for key, x := range all {
		below := strings.TrimPrefix(path+"."+strings.ToLower(key), ".")
		if !c.known(below) {
			c.Unknown++
			c.texts.Hide(key)
			c.hide(x)
			continue
		}
		out[key] = c.clean(below, x)
	}
	return out
}

// known reports whether a path is that of a known key.
func (c *cleaner) known(path string) bool {
	if slices.Contains(secretKeys(), path) {
		return true
	}
	for p := range c.forms {
		if rest, below := strings.CutPrefix(p, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// hide has every value below v hidden in texts.
func (c *cleaner) hide(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			c.texts.Hide(key)
			c.hide(x)
		}
	case []any:
		for _, x := range v {
			c.hide(x)
		}
	case string:
		c.texts.Hide(v)
		c.Files = append(c.Files, v)
		c.hideURL(v)
	case nil, bool:
	default:
		c.texts.Hide(fmt.Sprint(v))
	}
}

// hideURL has the parts of a URL hidden.
func (c *cleaner) hideURL(text string) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		c.texts.Hide(host)
	}
	if i := strings.LastIndex(text, "@"); i >= 0 { // also in a text that cannot be parsed as a URL
		_, info, found := strings.Cut(text[:i], "://")
		if !found {
			info = text[:i]
		}
		user, password, _ := strings.Cut(info, ":")
		c.texts.Hide(user)
		c.texts.Hide(password)
	}
	u, err := url.Parse(text)
	if err != nil {
		return
	}
	password, _ := u.User.Password()
	parts := []string{u.User.Username(), password, strings.Trim(u.Path, "/"), u.RawQuery, u.Fragment}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		parts = append(parts, u.Hostname())
	}
	for _, part := range parts {
		c.texts.Hide(part)
	}
	for _, values := range u.Query() {
		for _, value := range values {
			c.texts.Hide(value)
		}
	}
}

// secretKeys lists the keys whose values are always removed: names of files and users.
func secretKeys() []string {
	return []string{
		"cadastre.kvdb.ca", "cadastre.kvdb.cert", "cadastre.kvdb.key",
		"cadastre.kvdb.username", "cadastre.kvdb.passwordfile", "cadastre.kvdb.kubeconfig",
		"cadastre.instanceid", "cadastre.interfaces.checkpoint", "cadastre.interfaces.export",
		"cadastre.rest.cert", "cadastre.rest.key", "cadastre.rest.clientca",
		"cadastre.metrics.cert", "cadastre.metrics.key", "cadastre.metrics.clientca",
		"nodeconfig[].nodename", "cadastre.underlay.interface", "cadastre.vpp.interface",
	}
}

// forms returns the allow list: the form of the values of each key that stay. Keys are
// written in lower case, as they match in any case.
func forms() map[string]form {
	words := func(all ...string) form {
		return func(v any) (any, bool) {
			s, ok := v.(string)
			return v, ok && slices.Contains(all, s)
		}
	}
	all := map[string]form{
		"ipamconfig.contivcidr":           prefixes,
		"ipamconfig.servicecidr":          prefixes,
		"ipamconfig.nodeinterconnectcidr": prefixes,
		"ipamconfig.defaultgateway":       prefixes,
		"ipamconfig.podsubnetcidr":        prefixes,
		"ipamconfig.vpphostsubnetcidr":    prefixes,
		"ipamconfig.vxlancidr":            prefixes,

		"ipamconfig.vswitchsubnetcidr":  prefixes, // former names
		"ipamconfig.hostnodesubnetcidr": prefixes,

		"nodetonodetransport": words("vxlan", "srv6", "nooverlay"),
		"interfacerxmode":     words("default", "polling", "interrupt", "adaptive"),

		"nodeconfig[].mainvppinterface.ip": prefixes,
		"nodeconfig[].gateway":             prefixes,

		"cadastre.podblocks":           words("nodeid", "podcidr", "netresource", "interfaces", "static"),
		"cadastre.staticpodcidrs[]":    prefixes,
		"cadastre.allowoverlap[]":      overlap,
		"cadastre.kvdb.type":           words("bolt", "etcd", "kubernetes"),
		"cadastre.kvdb.endpoints[]":    endpoint,
		"cadastre.kvdb.prefix":         words("/cadastre/"),
		"cadastre.docker.socket":       words("/run/docker/plugins/cadastre.sock"),
		"cadastre.dataplane":           words("none", "linux", "vpp"),
		"cadastre.transport":           words("none", "nodeip", "hostgw", "vxlan", "wireguard"),
		"cadastre.underlay.cidrs[]":    prefixes,
		"cadastre.cni.confdir":         words("/etc/cni/net.d"),
		"cadastre.cni.network":         words("cadastre"),
		"cadastre.cni.bindir":          words("/opt/cni/bin"),
		"cadastre.vpp.socket":          words("/run/vpp/api.sock"),
		"cadastre.rest.listen":         listen,
		"cadastre.metrics.listen":      listen,
		"cadastre.log.level":           words("debug", "info", "warn", "error"),
		"cadastre.log.format":          words("text", "json"),
		"cadastre.traces.endpoint":     endpoint,
		"cadastre.traces.protocol":     words("http"),
		"cadastre.docker.pools[].base": prefixes,
		"cadastre.witnesses.netns[]": words(
			"/run/netns",
			"/var/run/netns",
			"/var/run/docker/netns",
			"/run/docker/netns",
		),
		"cadastre.witnesses.results": words("/var/lib/cni/results"),
		"cadastre.witnesses.runtime": words(
			"auto",
			"none",
			"unix:///run/containerd/containerd.sock",
			"unix:///run/crio/crio.sock",
		),
		"cadastre.witnesses.engine": words("auto", "none", "unix:///run/docker.sock", "unix:///var/run/docker.sock"),
	}
	for _, key := range []string{
		"mtusize", "natexternaltraffic", "usenooverlay", "usel2interconnect", "mainvrfid", "podvrfid",
		"ipamconfig.podnetworkprefixlen", "ipamconfig.vpphostnetworkprefixlen", "ipamconfig.vswitchnetworkprefixlen",
		"ipamconfig.useexternalipam", "ipamconfig.nodeinterconnectdhcp",
		"ipamconfig.podsubnetonenodeprefixlen", "ipamconfig.podsubnetonenodeprefixlenipv6",
		"ipamconfig.vpphostsubnetonenodeprefixlen", "ipamconfig.vpphostsubnetonenodeprefixlenipv6",
		"cadastre.nodeid", "cadastre.waitforpodcidr", "cadastre.cooldown",
		"cadastre.netresource.minallocate", "cadastre.netresource.maxallocate",
		"cadastre.netresource.preallocate", "cadastre.netresource.maxabovewatermark",
		"cadastre.interfaces.warmips", "cadastre.interfaces.minimumips", "cadastre.interfaces.warmprefixes",
		"cadastre.interfaces.warminterfaces", "cadastre.interfaces.maxinterfaces", "cadastre.interfaces.maxpods",
		"cadastre.interfaces.prefixes", "cadastre.interfaces.cooldown", "cadastre.interfaces.reconcile",
		"cadastre.nodeids.refresh", "cadastre.nodeids.fresh", "cadastre.nodeids.expire", "cadastre.nodeids.quarantine",
		"cadastre.metrics.enabled", "cadastre.docker.enabled", "cadastre.docker.frompods",
		"cadastre.mtu", "cadastre.masquerade", "cadastre.allowforward", "cadastre.vni",
		"cadastre.history.entries", "cadastre.history.age", "cadastre.traces.sampling",
		"cadastre.witnesses.interval", "cadastre.reclaim.enabled", "cadastre.reclaim.grace", "cadastre.reclaim.undo",
		"cadastre.docker.pools[].size", "cadastre.docker.cooldown", "cadastre.docker.serial",
		"cadastre.controller.enableretry", "cadastre.controller.delayretry", "cadastre.controller.maxretryattempts",
		"cadastre.controller.enableexpbackoffretry", "cadastre.controller.delaylocalresync",
		"cadastre.controller.startupresyncdeadline", "cadastre.controller.enableperiodichealing",
		"cadastre.controller.periodichealinginterval", "cadastre.controller.delayaftererrorhealing",
		"cadastre.controller.healingbackofflimit", "cadastre.controller.maxhealingattempts",
		"cadastre.controller.remotedbprobinginterval", "cadastre.controller.eventtimeout",
		"cadastre.controller.recordeventhistory", "cadastre.controller.eventhistoryagelimit",
		"cadastre.controller.permanentlyrecordedinitperiod", "cadastre.controller.enableverification",
	} {
		all[key] = quantity
	}
	return all
}

// quantity accepts truth values, numbers that are not long enough for a password, and
// durations.
func quantity(v any) (any, bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		_, err := time.ParseDuration(v)
		return v, err == nil && len(v) < 12
	case float64, int64:
		return v, len(fmt.Sprint(v)) < shortestNumber
	}
	return nil, false
}

// prefixes accepts addresses and prefixes, with commas between them.
func prefixes(v any) (any, bool) {
	s, ok := v.(string)
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		a, aerr := netip.ParseAddr(part)
		if err != nil && aerr != nil || p.Addr().Zone() != "" || a.Zone() != "" {
			return nil, false
		}
	}
	return v, ok
}

// overlap accepts a pair of networks of ipamConfig.
func overlap(v any) (any, bool) {
	s, ok := v.(string)
	for part := range strings.SplitSeq(s, "/") {
		part = strings.ToLower(strings.TrimSpace(part))
		if !slices.Contains(
			[]string{"podsubnetcidr", "vpphostsubnetcidr", "nodeinterconnectcidr", "vxlancidr", "servicecidr"},
			part,
		) {
			return nil, false
		}
	}
	return v, ok
}

// listen accepts a port with an address or without one.
func listen(v any) (any, bool) {
	s, _ := v.(string)
	host, port, err := net.SplitHostPort(s)
	if err != nil || port == "" || strings.Trim(port, "0123456789") != "" {
		return nil, false
	}
	_, err = netip.ParseAddr(host)
	return v, host == "" || host == "localhost" || err == nil
}

// endpoint accepts a URL, of which only scheme, an address as the host and the port stay.
func endpoint(v any) (any, bool) {
	s, _ := v.(string)
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, false
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		u.Host = strings.TrimSuffix("name:"+u.Port(), ":") // a name may say more than it should
	}
	return u.Scheme + "://" + u.Host, true
}
