/** Files that models made. */

import { useState } from "preact/hooks";
import { api, call, must } from "../api/client";
import type { File } from "../api/types";
import { ago, bytes, plain } from "../lib/format";
import { useActing } from "../ui/hooks";
import { usePaged } from "../ui/paged";
import { Button, Card, Confirm, Empty, ErrorNote, PageHead } from "../ui/parts";

export default function Files() {
  const files = usePaged<File>("/v1/files");
  const [erased, setErased] = useState<File | null>(null);
  const acting = useActing();
  const save = (file: File) =>
    acting.run(async () => {
      const blob = await (await call(`/v1/files/${file.id}/content`)).blob();
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = file.filename;
      link.click();
      window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
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
          <div class="table-wrap" tabIndex={0} role="region" aria-label="Files">
            <table>
              <thead>
                <tr>
                  <th scope="col">Name</th>
                  <th scope="col">Type</th>
                  <th scope="col">For</th>
                  <th scope="col" class="number">
                    Size
                  </th>
                  <th scope="col">Made</th>
                  <th scope="col">Removed</th>
                  <th scope="col">
                    <span class="visually-hidden">Do</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {files.rows?.map((one) => (
                  <tr key={one.id}>
                    <td>
                      <bdi>{plain(one.filename, 80)}</bdi>
                    </td>
                    <td>{plain(one.content_type, 60)}</td>
                    <td>{one.purpose}</td>
                    <td class="number">{bytes(one.bytes)}</td>
                    <td>{ago(one.created_at)}</td>
                    <td>{ago(one.expires_at)}</td>
                    <td>
                      <span class="actions">
                        <Button class="small" onClick={() => void save(one)}>
                          Save
                        </Button>
                        <Button kind="quiet" class="small" onClick={() => setErased(one)}>
                          Delete
                        </Button>
                      </span>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>,
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
