package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// top is the path to the top of the source tree.
const top = "../../.."

// TestSchemaIsCurrent generates the schema. The result must equal the schema file in the tree.
func TestSchemaIsCurrent(t *testing.T) {
	want, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(top, "packaging/vipd.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("packaging/vipd.schema.json differs from the generated schema: run go run ./cmd/internal/schema -o packaging/vipd.schema.json")
	}
}

// TestExamplesMatch validates every complete configuration in the source tree. The schema must
// accept each of them.
func TestExamplesMatch(t *testing.T) {
	schema := compiled(t)
	files := []string{filepath.Join(top, "systemd/vipd.toml")}
	for _, pattern := range []string{"examples/*.toml", "examples/*/*.toml", "balancer/testdata/scenarios/*/services.toml"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 20 {
		t.Fatalf("configurations = %d, want at least 20", len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(parsed(t, string(text))); err != nil {
			t.Errorf("%s: schema error = %v, want none", file, err)
		}
	}
}

// TestMistakesAreRefused validates configurations with one mistake each. The schema must refuse
// each, with an error that names the field.
func TestMistakesAreRefused(t *testing.T) {
	schema := compiled(t)
	web := "[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = 80 }]\n"
	if err := schema.Validate(parsed(t, web)); err != nil {
		t.Fatal("valid service, want no error:", err)
	}
	for _, c := range []struct{ text, field string }{
		{"mod = \"nftables\"", "mod"},
		{"mode = \"haproxy\"", "/mode"},
		{web + "schedular = \"rr\"", "schedular"},
		{web + "scheduler = \"leastconn\"", "/services/web/scheduler"},
		{web + "drain_timeout = 30", "/services/web/drain_timeout"},
		{web + "drain_timeout = \"30\"", "/services/web/drain_timeout"},
		{web + "mss = 70000", "/services/web/mss"},
		{web + "endpoints = [{ address = \"10.0.0.1\", port = 70000 }]", "/services/web/endpoints/0/port"},
		{web + "health = { type = \"ping\" }", "/services/web/health/type"},
		{"[services.web]\nports = [{ port = 80 }]", "/services/web"},
		{"[defaults]\nvips = [\"10.96.0.10\"]", "/defaults"},
		{"[vips.\"192.0.2.10\"]\nhold = \"both\"", "/vips/192.0.2.10/hold"},
		{"[ownership.vrrp.pair]\nrouter_id = \"51\"", "/ownership/vrrp/pair/router_id"},
	} {
		err := schema.Validate(parsed(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("Validate(%q) = %v, want an error that names %s", c.text, err, c.field)
		}
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := generate(top)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("vipd.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("vipd.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// parsed returns a TOML configuration as decoded JSON.
func parsed(t *testing.T, text string) any {
	t.Helper()
	var tree map[string]any
	if _, err := toml.Decode(text, &tree); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	return value
}
