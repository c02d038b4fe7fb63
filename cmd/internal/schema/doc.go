// Schema writes a JSON Schema of vipd.toml, by which editors complete and check the file.
//
//	go run ./cmd/internal/schema -o packaging/vipd.schema.json
//
// The fields and their types come from the structs that vipd decodes, and the descriptions from
// docs/reference.md and systemd/vipd.toml. It runs at the top of the tree. Rules between fields are
// left to "vipctl check".
package main
