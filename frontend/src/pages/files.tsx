/** Files that models made. */

import { useState } from "preact/hooks";
import { api, call, must } from "../api/client";
import type { File } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { saveAs } from "../lib/save";
import { useActing } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Confirm, Empty, ErrorNote, PageHead } from "../ui/parts";
import { Table } from "../ui/table";

export default function Files() {
  const files = usePaged<File>("/v1/files");
  const [erased, setErased] = useState<File | null>(null);
  const acting = useActing();
  const save = (file: File) =>
    acting.run(async () => {
      saveAs(await (await call(`/v1/files/${file.id}/content`)).blob(), file.filename);
    });
  const erase = (file: File) =>
    acting.run(async () => {
      await must(api.DELETE("/v1/files/{file_id}", { params: { path: { file_id: file.id } } }));
      setErased(null);
      files.reload();
    });
  return (
    <>
      <PageHead title="Files" note="What models made; each is removed by itself after a time." />
      {!erased && <ErrorNote error={acting.error} />}
      <Card>
        {files.frame(
          <Table
            label="Files"
            rows={files.rows}
            keyOf={(one) => one.id}
            columns={[
              { name: "Name", cell: (one) => <bdi>{plain(one.filename, 80)}</bdi> },
              { name: "Type", cell: (one) => plain(one.content_type, 60) },
              { name: "For", cell: (one) => one.purpose },
              { name: "Size", isNumber: true, cell: (one) => bytes(one.bytes) },
              { name: "Made", cell: (one) => ago(one.created_at) },
              { name: "Removed", cell: (one) => ago(one.expires_at) },
              {
                name: "Do",
                isQuiet: true,
                cell: (one) => (
                  <span class="actions">
                    <Button class="small" onClick={() => void save(one)}>
                      Save
                    </Button>
                    <Button kind="quiet" class="small" onClick={() => setErased(one)}>
                      Delete
                    </Button>
                  </span>
                ),
              },
            ]}
          />,
          <Empty title="No files yet: pictures and sound that models make by URL are kept here." />,
        )}
      </Card>
      {erased && (
        <Confirm
          title={`Delete ${plain(erased.filename, 64)}?`}
          action="Delete it"
          isBusy={acting.isBusy}
          error={acting.error}
          onYes={() => void erase(erased)}
          onClose={() => setErased(null)}
        >
          <p>Its bytes are erased, and links to it end.</p>
        </Confirm>
      )}
    </>
  );
}
