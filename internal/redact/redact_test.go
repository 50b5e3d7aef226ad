// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package redact_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/redact"
)

func ExampleCleanConfig() {
	texts := redact.NewTexts()
	conf, err := redact.CleanConfig([]byte(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16}
cadastre: {kvdb: {type: etcd, username: operator, passwordFile: /etc/cadastre/etcd-password}}
`), texts)
	if err != nil {
		panic(err)
	}
	fmt.Print(string(conf.YAML))
	fmt.Println(string(texts.Clean([]byte("open /etc/cadastre/etcd-password: permission denied"))))
	// Output:
	// cadastre:
	//   kvdb:
	//     passwordFile: REMOVED
	//     type: etcd
	//     username: REMOVED
	// ipamConfig:
	//   podSubnetCIDR: 10.1.0.0/16
	// open REMOVED: permission denied
}

// plant replaces every value below v by a secret of its own, and adds one beside it.
func plant(v any, path string, secrets map[string]string) any {
	secret := func(what string) string {
		s := fmt.Sprintf("PLANTED%d \"é/&\\", len(secrets))
		secrets[s] = path + what
		return s
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{secret(" (a key)"): secret(" (below an unknown key)")}
		for key, x := range v {
			out[key] = plant(x, path+"."+key, secrets)
		}
		return out
	case []any:
		return []any{secret("[]"), map[string]any{"base": secret("[].base")}}
	}
	return secret("")
}

// written returns a secret in the forms in which logs, JSON and URLs have it.
func written(s string) []string {
	quoted, _ := json.Marshal(s)
	line, _ := json.Marshal(map[string]string{"msg": fmt.Sprintf("open %q", s)})
	return []string{s, string(quoted), string(line), strconv.Quote(s), url.QueryEscape(s), url.PathEscape(s), (&url.URL{Scheme: "https", Host: "h", User: url.UserPassword("u", s)}).String()}
}

func expectNothingPlanted(g Gomega, text, where string) {
	g.ExpectWithOffset(1, strings.Contains(text, "PLANTED")).To(BeFalse(), "%s: %s", where, text)
}

// Secrets in place of every value, in every list and under unknown keys are neither in
// the cleaned file nor in a text that repeats them.
func TestSecretsEverywhereInTheConfiguration(t *testing.T) {
	g := NewWithT(t)
	var conf any
	g.Expect(yaml.Unmarshal(reference(g), &conf)).To(Succeed())
	secrets := map[string]string{}
	planted, err := yaml.Marshal(plant(conf, "", secrets))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(secrets)).To(BeNumerically(">", 80))
	texts := redact.NewTexts()
	cleaned, err := redact.CleanConfig(append([]byte("# a comment: PLANTED\n"), planted...), texts)
	g.Expect(err).NotTo(HaveOccurred())
	expectNothingPlanted(g, string(cleaned.YAML), "the file")
	g.Expect(cleaned.Values + cleaned.Unknown).To(BeNumerically(">", 60))
	for s, where := range secrets {
		for _, form := range written(s) {
			expectNothingPlanted(g, string(texts.Clean([]byte("a log line with "+form+" in it"))), where)
		}
	}
}

func reference(g Gomega) []byte {
	text, err := os.ReadFile("../../conf/reference.conf")
	g.Expect(err).NotTo(HaveOccurred())
	return text
}

// Every key of reference.conf is in the allow list or in the list of those whose value
// is removed. A new key must be put into one of them.
func TestEveryKeyOfTheReferenceIsKnown(t *testing.T) {
	g := NewWithT(t)
	texts := redact.NewTexts()
	cleaned, err := redact.CleanConfig(reference(g), texts)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cleaned.Unknown).To(BeZero(), "known are only\n%s", cleaned.YAML)
	g.Expect(cleaned.Values).To(BeZero(), "the defaults are public")
	g.Expect(string(cleaned.YAML)).To(And(ContainSubstring("podSubnetCIDR: 10.1.0.0/16"), ContainSubstring("eventTimeout: 60s"), ContainSubstring("nodeID: 0")))
}

func TestEndpoints(t *testing.T) {
	for given, c := range map[string]struct{ want, hidden string }{
		"https://10.0.0.1:2379":                            {"https://10.0.0.1:2379", ""},
		"https://PLANTEDuser:PLANTED%21@10.0.0.1:2379":     {"https://10.0.0.1:2379", "PLANTED!"},
		"https://[fd00::1]:2379/PLANTED?token=PLANTED#frg": {"https://[fd00::1]:2379", "/PLANTED?token=PLANTED"},
		"https://planted.example.org:2379":                 {"https://name:2379", "planted.example.org"},
		"PLANTED-word":                                     {"REMOVED", "PLANTED-word"},
		"unix:///PLANTED":                                  {"REMOVED", "/PLANTED"},
	} {
		g := NewWithT(t)
		texts := redact.NewTexts()
		conf, err := redact.CleanConfig(fmt.Appendf(nil, "cadastre: {kvdb: {endpoints: [%q]}}", given), texts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(conf.YAML)).To(ContainSubstring("- " + c.want + "\n"))
		line := string(texts.Clean([]byte("dial " + given + " failed, " + c.hidden)))
		expectNothingPlanted(g, strings.ToUpper(strings.ReplaceAll(line, "token=", "")), line)
	}
}

// Of a file that cannot be parsed every word that is not known is hidden, and the error does
// not quote it.
func TestAFileThatIsNotYAML(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{"ipamConfig: {podSubnetCIDR: 10.1.0.0/16\n  password: PLANTED1\n\tx: 'PLANTED2'", "- a list\n- PLANTED1\n- PLANTED2"} {
		texts := redact.NewTexts()
		conf, err := redact.CleanConfig([]byte(text), texts)
		g.Expect(err).To(MatchError("the file is not a YAML object"))
		g.Expect(conf.YAML).To(BeEmpty())
		clean := string(texts.Clean([]byte("podSubnetCIDR 10.1.0.0/16: PLANTED1, PLANTED2")))
		g.Expect(clean).To(Equal("podSubnetCIDR 10.1.0.0/16: REMOVED, REMOVED"))
	}
}

// Credentials that no configuration names are removed by their form.
func TestCredentialsAreRemovedByTheirForm(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{
		"HTTPS_PROXY=http://PLANTED:PLANTED@proxy:3128",
		"-----BEGIN RSA PRIVATE KEY-----\nPLANTED\nPLANTED\n-----END RSA PRIVATE KEY-----",
		"-----BEGIN CERTIFICATE-----\nPLANTED, cut off",
		"Authorization: Bearer PLANTED.PLANTED", "authorization: basic PLANTEDPLANTED==",
		"eyJhbGciPLANTED.eyJzdWIPLANTED.PLANTED",
		`password=PLANTED`, `{"token":"PLANTED"}`, `{"msg":"{\"password\": \"PLANTED\"}"}`, `api_key: 'PLANTED'`, "secret: PLANTED",
	} {
		expectNothingPlanted(g, string(redact.NewTexts().Clean([]byte(text))), text)
	}
	for _, text := range []string{`{"token":"PLANTED","ip":"10.1.5.2"}`, `{"secret":null,"a":1}`} {
		g.Expect(json.Valid(redact.NewTexts().Clean([]byte(text)))).To(BeTrue(), text)
	}
	const ordinary = `leased 10.1.5.2 to default/web at https://10.0.0.1:2379, 12 tokens, true`
	g.Expect(string(redact.NewTexts().Clean([]byte(ordinary)))).To(Equal(ordinary))
}

func TestTheContentOfASecretFileIsHidden(t *testing.T) {
	g := NewWithT(t)
	texts := redact.NewTexts()
	texts.HideContent([]byte("PLANTED-password\n"))
	texts.HideContent([]byte("header\nPLANTEDlineoneofakey\nPLANTEDlinetwoofakey\n"))
	expectNothingPlanted(g, string(texts.Clean([]byte("auth failed for PLANTED-password; PLANTEDlinetwoofakey"))), "")
}

func FuzzCleanConfig(f *testing.F) {
	f.Add("cadastre: {kvdb: {endpoints: ['http://u:p@h']}}", "secret: x")
	f.Fuzz(func(_ *testing.T, conf, text string) {
		texts := redact.NewTexts()
		_, _ = redact.CleanConfig([]byte(conf), texts)
		_ = texts.Clean([]byte(text))
	})
}

// TestASecretWithItsNameGone: a key that is removed from the configuration does not leave
// the credentials that stand behind its name elsewhere.
func TestASecretWithItsNameGone(t *testing.T) {
	g, texts := NewWithT(t), redact.NewTexts()
	_, err := redact.CleanConfig([]byte("cadastre: {password: first, kvdb: {endpoints: ['user:PLANTED/one@10.0.0.1:2379']}}"), texts)
	g.Expect(err).NotTo(HaveOccurred())
	for text, want := range map[string]string{
		`password="correct horse PLANTED battery" next=1`:    `REMOVED="REMOVED" next=1`,
		`password=PLANTED-1 next=1`:                          `REMOVED=REMOVED next=1`,
		`{"password":"a\"PLANTED b","n":1}`:                  `{"REMOVED":"REMOVED","n":1}`,
		`{"msg":"password=\"correct PLANTED x\"","n":1}`:     `{"msg":"REMOVED=\"REMOVED\"","n":1}`,
		`passwd='PLANTED x y'`:                               `passwd='REMOVED'`,
		`--etcd-token PLANTED`:                               `--etcd-token REMOVED`,
		`aws_secret_access_key=PLANTED`:                      `aws_secret_access_key=REMOVED`,
		`client-key-data: PLANTED`:                           `client-key-data: REMOVED`,
		`dial https://a:b/PLANTED@host/: refused`:            `dial https://REMOVED@host/: refused`,
		`dial https://a:b@PLANTED@host/: refused`:            `dial https://REMOVED@host/: refused`,
		`the part PLANTED/one is wrong`:                      `the part REMOVED is wrong`,
		`{"token":null,"n":[1,2]}`:                           `{"token":null,"n":[1,2]}`,
		`10.1.5.7 of pool default: no such file, eth0 is up`: `10.1.5.7 of pool default: no such file, eth0 is up`,
	} {
		g.Expect(string(texts.Clean([]byte(text)))).To(Equal(want))
	}
}
