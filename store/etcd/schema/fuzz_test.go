package schema

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"vipd/balancer"
)

// FuzzValue decodes arbitrary values under arbitrary keys. If a key is valid, encoding and decoding
// it must return an equal key. If a service definition is valid, encoding and decoding it must
// return an equal service.
func FuzzValue(f *testing.F) {
	for key, text := range map[string]string{
		"services/web":               `{"vips":["10.96.0.10","auto"],"ports":[{"name":"http","port":80}],"health":{"type":"http"},"idle_timeout":"1m"}`,
		"endpoints/web/a:80":         `{"address":"fd00::1","weight":0,"ports":{"http":8080},"x":null}`,
		"overrides/web/[fd00::1]:80": `{"weight":1,"draining":true,"until":"2026-01-31T12:00:00Z","by":"é\u00e9"}`,
		"vips/fd00::1":               "web",
		"nodes/n1/config":            `{"mode":"ipvs","zone":"z1","x":1}`,
		"services/x":                 `{"vips":["10.0.0.1"],"vips":1e400}`, "": "",
	} {
		f.Add(key, []byte(text))
	}
	keys, err := NewKeys("/p")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		s, err := keys.Parse("/p/" + key)
		if err != nil {
			return
		}
		switch s.Kind {
		case ServiceKind:
			key = keys.Service(s.Of)
		case EndpointKind:
			key = keys.Endpoint(s.ID)
		case OverrideKind:
			key = keys.Override(s.Target)
		case VIPKind:
			key = keys.VIP(s.VIP)
		case NodeConfigKind:
			key = keys.NodeConfig(s.Node)
		}
		if again, err := keys.Parse(key); err != nil || again != s {
			t.Fatalf("key %+v encoded as %q, decoded = %+v, %v, want the same key", s, key, again, err)
		}
		value, problems := DecodeValue(s, text, balancer.Origin{Key: key}, nil)
		if value == nil && len(problems) == 0 {
			t.Fatal("DecodeValue returns neither a value nor a problem")
		}
		if service, ok := value.(*balancer.Service); ok {
			again, err := Encode(balancer.EncodeService(service))
			if err != nil {
				t.Fatal(err)
			}
			if e, problems := DecodeValue(s, again, balancer.Origin{Key: key}, nil); !reflect.DeepEqual(value, e) {
				t.Fatalf("%s decoded again = %+v, %v, want the same service", again, e, problems)
			}
		}
	})
}

// FuzzTree compares the parser with encoding/json, which accepts more texts. If the parser accepts
// a text, both must return the same value.
func FuzzTree(f *testing.F) {
	for _, text := range []string{`{"a":[1,-2.5e3,true,false,null,"x\"\u00e9",{}],"":{"b":[]}}`, ` { "a" : 1 , "b" : [ 1 , 2 ] } `, `{"a":1,"a":2}`, `[]`, "{\"\xff\":\"\xff\"}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ParseObject(text)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want map[string]any
		if err := d.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("parsed value = %v, want %v; error of encoding/json = %v", got, want, err)
		}
	})
}
