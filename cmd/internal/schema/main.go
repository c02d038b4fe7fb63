package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

func main() {
	out := flag.String("o", "packaging/vipd.schema.json", "write the schema to `FILE`")
	flag.Parse()
	text, err := generate(".")
	if err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

// generate returns the JSON Schema. folder is the top of the source tree.
func generate(folder string) ([]byte, error) {
	about, err := readDescriptions(folder)
	if err != nil {
		return nil, err
	}
	w := &writer{about: about}
	root := w.table(reflect.TypeFor[config.Config](), "")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Configuration of vipd"
	properties := root["properties"].(node)
	service := w.table(reflect.TypeFor[balancer.Service](), "services")
	fields := service["properties"].(node)
	fields["vips"] = w.described(node{"type": "array", "items": node{"type": "string"}}, "services", "vips")
	endpoint := w.table(reflect.TypeFor[balancer.Endpoint](), "services.endpoints")
	endpoint["properties"].(node)["address"] = w.described(node{"type": "string"}, "services.endpoints", "address")
	endpoint["required"] = []string{"address"}
	fields["endpoints"] = w.described(node{"type": "array", "items": endpoint}, "services", "endpoints")
	check := w.table(reflect.TypeFor[balancer.Health](), "services.health")
	fields["health"] = w.described(node{"anyOf": []node{check, {"type": "array", "items": check}}}, "services", "health")
	service["required"] = []string{"vips", "ports"}
	properties["services"] = node{"type": "object", "additionalProperties": service}
	properties["vips"] = node{"type": "object", "additionalProperties": w.table(reflect.TypeFor[balancer.VIP](), "vips")}
	defaults := node{}
	for name, field := range fields {
		if name != "vips" && name != "ports" && name != "endpoints" && name != "access_log" {
			defaults[name] = field
		}
	}
	properties["defaults"] = node{"type": "object", "properties": defaults, "additionalProperties": false}
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}
