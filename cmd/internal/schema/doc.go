// Schema writes a JSON Schema for vipd.toml, which editors use to complete and check the file.
//
//	go run ./cmd/internal/schema -o packaging/vipd.schema.json
//
// The fields and their types come from the structs that vipd decodes. The descriptions come from
// docs/reference.md and systemd/vipd.toml. Run the command at the top of the source tree. The
// schema does not contain rules that involve several fields. "vipctl check" checks these rules.
package main
